"""The web application: the files of the page, and the routes that compute what it shows.

Annotations are not postponed here: FastAPI evaluates them, and would not find names that are local to a function.
"""

import functools
import os
from collections.abc import Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from patchreorder import __version__
from patchreorder.data.images import BadImage

from . import networks, photographs, requests
from .cache import Cache
from .digits import Digit, Mnist, render, samples
from .limits import BUSY, UPLOAD, LimitedApp, error_response
from .networks import Networks
from .photographs import Photographs, UnsupportedFormat
from .pool import Abandoned, Busy, Pool, TimedOut
from .requests import DigitPose, Drawing, InvalidRequest

PAGE = Path(__file__).parent / "page"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
LIVE_SECONDS, SLOW_SECONDS = 5.0, 30.0
CACHED = 400  # rings and maps of shifts
NO_STORE = {"cache-control": "no-store"}
Check = Callable[[], None]


def need_fastapi() -> None:
    """Raise an ImportError that says what to install."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ImportError("the playground needs fastapi and uvicorn: pip install 'patchreorder[play]'") from None


def create_app(
    *, mnist: Mnist, photos: Photographs, hosts: Collection[str] = (), any_address: bool = False
) -> LimitedApp:
    """Return the playground as an ASGI application.

    Quick answers, rings, maps of shifts and uploads have threads of their own, so that none delays another.

    Args:
        mnist: digits to choose from.
        photos: holds the uploads.
        hosts, any_address: see `LimitedApp`.
    """
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response

    models = Networks()
    cores = os.cpu_count() or 1
    live = Pool(workers=cores, waiting=24, seconds=LIVE_SECONDS)
    rotating = Pool(workers=max(1, cores // 2), waiting=24, seconds=SLOW_SECONDS)
    shifting = Pool(workers=max(1, cores // 2), waiting=24, seconds=SLOW_SECONDS)
    decoding = Pool(workers=1, waiting=3, seconds=SLOW_SECONDS)
    cache: Cache[tuple[str, bytes, DigitPose], dict[str, Any]] = Cache(CACHED)
    files = {
        path.name: (path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in PAGE.iterdir()
        if path.suffix in MEDIA_TYPES
    }

    @asynccontextmanager
    async def closing(app: FastAPI):  # type: ignore[no-untyped-def]
        yield
        for pool in (live, rotating, shifting, decoding):
            pool.close()

    # No generated pages about the interface: they load scripts from other servers.
    app = FastAPI(title="patchreorder", docs_url=None, redoc_url=None, openapi_url=None, lifespan=closing)

    async def respond(request: Request, pool: Pool, job: Callable[[Check], dict[str, Any]]) -> Response:
        """Run the job and return its result as JSON, or an error as a JSON object with `error`."""
        try:
            found = await pool.run(job, disconnected=_disconnected(request.receive))
        except UnsupportedFormat as error:
            return error_response(415, str(error))
        except BadImage as error:
            return error_response(400, str(error))
        except InvalidRequest as error:
            return error_response(422, str(error))
        except KeyError:
            return error_response(404, "this photograph is no longer in memory: send it again")
        except Busy:
            return error_response(503, BUSY)
        except TimedOut:
            return error_response(504, f"this took longer than {pool.seconds:g} seconds")
        except Abandoned:
            return Response(status_code=204)  # nobody reads it
        return JSONResponse(found, headers=NO_STORE)

    async def parse(request: Request) -> dict[str, Any]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a form on another site cannot send it
            raise InvalidRequest(f"content-type ({kind[:60]!r}) must be application/json")
        return requests.parse(await request.body())

    def find(wanted: Drawing | int) -> Digit:
        return mnist.digit(wanted) if isinstance(wanted, int) else render(wanted)

    @app.exception_handler(InvalidRequest)
    async def invalid(request: Request, error: Exception) -> JSONResponse:
        return error_response(422, str(error))

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def unknown(request: Request, error: Exception) -> JSONResponse:
        status = getattr(error, "status_code", 404)
        return error_response(status, f"there is no {request.method} {request.url.path[:100]!r} on this server")

    @app.get("/api/about")
    async def about() -> JSONResponse:
        facts = {
            "version": __version__,
            "mnist": mnist.reason,  # why it is not there, or empty
            "photographs": photos.reason,
            "errors": networks.error_rates(),
            "samples": [sample.as_json() for sample in samples()],
            "maps": {short: models.map_size(dataset) for short, dataset in requests.DATASETS.items()}
            | {"photo": photographs.MAP_SIZE},
        }
        return JSONResponse(facts, headers=NO_STORE)

    @app.get("/api/mnist")
    async def choice(request: Request) -> Response:
        seed = request.query_params.get("seed", "0")
        if not seed.isdecimal() or len(seed) > 9:
            raise InvalidRequest(f"seed ({seed[:20]!r}) must be an integer below a billion")
        return await respond(request, live, lambda check: {"digits": mnist.choice(int(seed))})

    @app.post("/api/answer")
    async def answer(request: Request) -> Response:
        asked = await parse(request)
        wanted, pose = requests.read_digit(asked), requests.read_digit_pose(asked)
        dataset = requests.read_dataset(asked)
        height, width = models.map_size(dataset)
        options = requests.read_options(asked, height=height, width=width)
        return await respond(request, live, lambda check: models.answer(find(wanted), pose, dataset, options))

    async def sweep(request: Request, pool: Pool, kind: str, pose: DigitPose, wanted: Drawing | int) -> Response:
        compute = {"ring": models.ring, "shifts": models.shifts}[kind]

        def job(check: Check) -> dict[str, Any]:
            digit = find(wanted)
            return cache.get((kind, digit.pixels.tobytes(), pose), lambda: compute(digit, pose, check=check))

        return await respond(request, pool, job)

    @app.post("/api/ring")
    async def ring(request: Request) -> Response:
        asked = await parse(request)
        pose = requests.read_digit_pose(asked)._replace(rotation=0)  # it shows all of them
        return await sweep(request, rotating, "ring", pose, requests.read_digit(asked))

    @app.post("/api/shifts")
    async def shifts(request: Request) -> Response:
        asked = await parse(request)
        pose = DigitPose(requests.read_digit_pose(asked).rotation)  # it shows all shifts
        return await sweep(request, shifting, "shifts", pose, requests.read_digit(asked))

    @app.post(UPLOAD)
    async def upload(request: Request) -> Response:
        content = await request.body()
        if not content:
            raise InvalidRequest("the file is empty")
        return await respond(request, decoding, lambda check: {"photo": photos.add(content)})

    @app.post("/api/photo")
    async def photo(request: Request) -> Response:
        asked = await parse(request)
        name, pose = asked.get("photo"), requests.read_photo_pose(asked)
        if not isinstance(name, str) or len(name) != 64:
            raise InvalidRequest(f"photo must be a name that {UPLOAD} returned")
        height, width = photographs.MAP_SIZE
        options = requests.read_options(asked, height=height, width=width)
        return await respond(request, live, lambda check: photos.look(name, pose, options))

    def page(name: str) -> Response:
        content, media_type = files[name]
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    for path, name in {"/": "index.html", **{f"/{name}": name for name in files}}.items():
        app.add_api_route(path, functools.partial(page, name), methods=["GET", "HEAD"])
    return LimitedApp(app, hosts=hosts, any_address=any_address)


async def _disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return once the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
