"""The web application: the files of the page, and a few questions that the library answers.

Annotations are not postponed here: FastAPI looks at them, and finds only what exists outside the function.
"""

import functools
import os
from collections.abc import Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from patchreorder import __version__
from patchreorder.data.images import BadImage

from . import asked, networks
from .asked import Refused
from .digits import Mnist, samples, shown
from .guard import UPLOAD, Guard
from .networks import Networks
from .photographs import Photographs, WrongKind
from .pool import Busy, Cache, GivenUp, Pool, TimeOver

PAGE = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
LIVE_SECONDS, SLOW_SECONDS = 5.0, 30.0
KEPT = 400  # rings and maps of shifts
Step = Callable[[], None]


def need_fastapi() -> None:
    """Raise an ImportError that says what to install, before anything is loaded."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ImportError("the playground needs fastapi and uvicorn: pip install 'patchreorder[play]'") from None


def create_app(
    *,
    mnist: Mnist,
    photographs: Photographs,
    names: Collection[str] = (),
    numbers: bool = False,
) -> Guard:
    """The playground as an ASGI application.

    What answers at once (probabilities, feature maps), the ring, the map of shifts, which takes longest, and what
    decodes photographs have threads of their own, so that none of them keeps another waiting.

    Args:
        mnist: digits to pick from.
        photographs: where photographs go.
        names, numbers: by which hosts the server may be called, see `Guard`.
    """
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response

    answering = Networks()
    cores = os.cpu_count() or 1
    live = Pool(workers=cores, waiting=24, seconds=LIVE_SECONDS)
    turning = Pool(workers=max(1, cores // 2), waiting=24, seconds=SLOW_SECONDS)
    shifting = Pool(workers=max(1, cores // 2), waiting=24, seconds=SLOW_SECONDS)
    decoding = Pool(workers=1, waiting=3, seconds=SLOW_SECONDS)
    cache = Cache(KEPT)
    files = {path.name: (path.read_bytes(), KINDS[path.suffix]) for path in PAGE.iterdir() if path.suffix in KINDS}

    @asynccontextmanager
    async def closing(app: FastAPI):  # type: ignore[no-untyped-def]
        yield
        for pool in (live, turning, shifting, decoding):
            pool.close()

    # No pages about the interface: they would load scripts from elsewhere.
    app = FastAPI(title="patchreorder", docs_url=None, redoc_url=None, openapi_url=None, lifespan=closing)

    def problem(status: int, text: str) -> JSONResponse:
        headers = {"cache-control": "no-store", **({"retry-after": "1"} if status == 503 else {})}
        return JSONResponse({"error": text}, status, headers=headers)

    async def answered(request: Request, pool: Pool, work: Callable[[Step], dict[str, Any]]) -> Response:
        """The work's answer as JSON; whatever goes wrong as a JSON object with `error`."""
        try:
            found = await pool.run(work, left=_left(request.receive))
        except WrongKind as error:
            return problem(415, str(error))
        except BadImage as error:
            return problem(400, str(error))
        except Refused as error:
            return problem(422, str(error))
        except KeyError:
            return problem(404, "this photograph is not kept any more: send it again")
        except Busy:
            return problem(503, "the server is busy: try again in a moment")
        except TimeOver:
            return problem(504, f"this took longer than {pool.seconds:g} seconds")
        except GivenUp:
            return Response(status_code=204)  # nobody reads it
        return JSONResponse(found, headers={"cache-control": "no-store"})

    async def asked_for(request: Request) -> dict[str, Any]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a form of another site cannot send it
            raise Refused(f"content-type ({kind[:60]!r}) must be application/json")
        return asked.parsed(await request.body())

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Exception) -> JSONResponse:
        return problem(422, str(error))

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def unknown(request: Request, error: Exception) -> JSONResponse:
        status = getattr(error, "status_code", 404)
        return problem(status, f"{request.method} {request.url.path[:100]!r} is nothing that this server knows")

    @app.get("/api/about")
    async def about() -> JSONResponse:
        facts = {
            "version": __version__,
            "mnist": mnist.reason,  # empty if all is well
            "photographs": photographs.reason,
            "errors": networks.measured(),
            "samples": [shown(sample) for sample in samples()],
            "maps": {short: answering.map_size(dataset) for short, dataset in asked.TRAINED.items()}
            | {"photo": photographs.map_size()},
        }
        return JSONResponse(facts, headers={"cache-control": "no-store"})

    @app.get("/api/mnist")
    async def choice(request: Request) -> Response:
        seed = request.query_params.get("seed", "0")
        if not seed.isdecimal() or len(seed) > 9:
            raise Refused(f"seed ({seed[:20]!r}) must be a whole number below a billion")
        return await answered(request, live, lambda check: {"digits": mnist.choice(int(seed))})

    @app.post("/api/answer")
    async def answer(request: Request) -> Response:
        ask = await asked_for(request)
        wanted, pose, dataset = asked.digit(ask), asked.pose(ask), asked.trained(ask)
        height, width = answering.map_size(dataset)
        settings = asked.settings(ask, height=height, width=width)
        return await answered(
            request, live, lambda check: answering.answer(mnist.find(wanted), pose, dataset, settings)
        )

    @app.post("/api/ring")
    async def ring(request: Request) -> Response:
        ask = await asked_for(request)
        wanted, pose = asked.digit(ask), asked.pose(ask)._replace(turn=0)

        def work(check: Step) -> dict[str, Any]:
            digit = mnist.find(wanted)
            return cache.get(("ring", digit.digest, pose), lambda: answering.ring(digit, pose, check=check))

        return await answered(request, turning, work)

    @app.post("/api/shifts")
    async def shifts(request: Request) -> Response:
        ask = await asked_for(request)
        wanted, pose = asked.digit(ask), asked.Pose(asked.pose(ask).turn)

        def work(check: Step) -> dict[str, Any]:
            digit = mnist.find(wanted)
            return cache.get(("shifts", digit.digest, pose), lambda: answering.shifts(digit, pose, check=check))

        return await answered(request, shifting, work)

    @app.post(UPLOAD)
    async def upload(request: Request) -> Response:
        content = await request.body()
        if not content:
            raise Refused("the file is empty")
        return await answered(request, decoding, lambda check: {"photo": photographs.take(content)})

    @app.post("/api/photo")
    async def photo(request: Request) -> Response:
        ask = await asked_for(request)
        name, pose = ask.get("photo"), asked.pose(ask, shifts=asked.SLIDES)
        if not isinstance(name, str) or len(name) != 64:
            raise Refused("photo must be the name that the server gave to a photograph")
        height, width = photographs.map_size()
        settings = asked.settings(ask, height=height, width=width)
        return await answered(request, live, lambda check: photographs.look(name, pose, settings))

    def page(name: str) -> Response:
        content, kind = files[name]
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    for name in files:
        app.add_api_route(f"/{name}", functools.partial(page, name), methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/", functools.partial(page, "index.html"), methods=["GET", "HEAD"], include_in_schema=False)
    return Guard(app, names=names, numbers=numbers)


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    """Returns as soon as the sender of the request went away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def use_one_thread_each() -> None:
    """Requests run beside each other, each on one core."""
    torch.set_num_threads(1)
