"""The web application: the files of the page, and the routes that compute what it shows.

Annotations are not postponed here: FastAPI evaluates them, and would not find names that are local to a function.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from patchreorder import __version__
from patchreorder.data.images import BadImage
from patchreorder.data.loader import processors

from . import networks, photographs, requests
from .cache import Cache
from .digits import Digit, Mnist, render, samples
from .limits import MAX_BODY, MAX_UPLOAD, NO_STORE, LimitedApp, error_response, read_body
from .photographs import Photographs
from .pool import BUSY, Abandoned, Pool
from .requests import DigitPose, RequestError

PAGE = Path(__file__).parent / "page"
MEDIA_TYPES = {  # those of the `mimetypes` module depend on the machine
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
LIVE_SECONDS, SLOW_SECONDS = 5.0, 30.0
MAX_UPLOADS = 4  # at the same time
CACHED = 400  # rings and maps of shifts
Job = Callable[[Callable[[], None]], dict[str, Any]]


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
    """Return the playground as an ASGI application; see `LimitedApp` for `hosts` and `any_address`.

    Quick answers, rings, maps of shifts and uploads have threads of their own, so that none delays another.
    """
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response
    from starlette.requests import ClientDisconnect
    from starlette.routing import Route

    models = networks.Networks()
    cores = processors()
    live = Pool(workers=cores, waiting=24, seconds=LIVE_SECONDS)
    rotating, shifting = (Pool(workers=max(1, cores // 2), waiting=24, seconds=SLOW_SECONDS) for _ in range(2))
    decoding = Pool(workers=1, waiting=3, seconds=SLOW_SECONDS)
    uploads = asyncio.Semaphore(MAX_UPLOADS)
    cache: Cache[tuple[str, bytes, DigitPose, str], dict[str, Any]] = Cache(CACHED)

    @asynccontextmanager
    async def closing(app: FastAPI):  # type: ignore[no-untyped-def]
        yield
        for pool in (live, rotating, shifting, decoding):
            pool.close()

    # No generated pages about the interface: they load scripts from other servers.
    app = FastAPI(title="patchreorder", docs_url=None, redoc_url=None, openapi_url=None, lifespan=closing)

    @app.exception_handler(RequestError)
    @app.exception_handler(BadImage)
    @app.exception_handler(404)
    @app.exception_handler(405)
    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, BadImage):
            error = RequestError(400, str(error))
        elif not isinstance(error, RequestError):
            text = f"there is no {request.method} {request.url.path[:100]!r} on this server"
            error = RequestError(getattr(error, "status_code", 404), text)
        return error_response(error)

    @app.exception_handler(Abandoned)
    @app.exception_handler(ClientDisconnect)
    async def abandoned(request: Request, error: Exception) -> Response:
        return Response(status_code=204)  # nobody reads it

    async def respond(request: Request, pool: Pool, job: Job) -> Response:
        async def disconnected() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        return JSONResponse(await pool.run(job, disconnected=disconnected()), headers=NO_STORE)

    async def parse(request: Request) -> dict[str, Any]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a form on another site cannot send it
            raise RequestError(422, f"content-type ({kind[:60]!r}) must be application/json")
        return requests.parse(await read_body(request, MAX_BODY))

    def find(asked: dict[str, Any]) -> Callable[[], Digit]:
        """Check the digit at once, and render it later, in the thread of the job."""
        wanted = requests.read_digit(asked)
        return lambda: mnist.digit(wanted) if isinstance(wanted, int) else render(wanted)

    @app.get("/api/about")
    async def about() -> JSONResponse:
        facts = {
            "version": __version__,
            "mnist": mnist.reason,  # why it is not there, or empty
            "photographs": photos.useless,
            "conv5": photos.reason,
            "classifier": photos.classifier.reason,
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
            raise RequestError(422, f"seed ({seed[:20]!r}) must be an integer below a billion")
        return await respond(request, live, lambda check: {"digits": mnist.choice(int(seed))})

    @app.post("/api/answer")
    async def answer(request: Request) -> Response:
        asked = await parse(request)
        digit, pose, dataset = find(asked), requests.read_digit_pose(asked), requests.read_dataset(asked)
        options = requests.read_options(asked, models.map_size(dataset))
        return await respond(request, live, lambda check: models.answer(digit(), pose, dataset, options))

    async def sweep(request: Request, pool: Pool, compute: Callable[..., dict[str, Any]], **fixed: int) -> Response:
        asked = await parse(request)
        digit, pose = find(asked), requests.read_digit_pose(asked)._replace(**fixed)
        dataset = requests.read_dataset(asked)

        def job(check: Callable[[], None]) -> dict[str, Any]:
            found = digit()
            key = compute.__name__, found.pixels.tobytes(), pose, dataset
            return cache.get(key, lambda: compute(found, pose, dataset, check=check))

        return await respond(request, pool, job)

    @app.post("/api/ring")
    async def ring(request: Request) -> Response:
        return await sweep(request, rotating, models.ring, rotation=0)  # it shows all rotations

    @app.post("/api/shifts")
    async def shifts(request: Request) -> Response:
        return await sweep(request, shifting, models.shifts, down=0, right=0)  # it shows all shifts

    def read_photo(asked: dict[str, Any]) -> str:
        name = asked.get("photo")
        if not isinstance(name, str) or len(name) != 64:
            raise RequestError(422, "photo must be a name that /api/photos returned")
        return name

    @app.post("/api/photos")
    async def upload(request: Request) -> Response:
        if uploads.locked():
            raise RequestError(*BUSY)
        async with uploads:
            content = await read_body(request, MAX_UPLOAD)
            if not content:
                raise RequestError(422, "the file is empty")
            return await respond(request, decoding, lambda check: {"photo": photos.add(content)})

    @app.post("/api/photo")
    async def photo(request: Request) -> Response:
        asked = await parse(request)
        name, pose = read_photo(asked), requests.read_photo_pose(asked)
        options = requests.read_options(asked, photographs.MAP_SIZE)
        return await respond(request, live, lambda check: photos.look(name, pose, options))

    @app.post("/api/photo-ring")
    async def photo_ring(request: Request) -> Response:
        asked = await parse(request)
        name, pose = read_photo(asked), requests.read_photo_pose(asked)
        return await respond(request, rotating, lambda check: photos.ring(name, pose, check=check))

    for file in PAGE.iterdir():
        page = Response(file.read_bytes(), media_type=MEDIA_TYPES[file.suffix], headers={"cache-control": "no-cache"})
        for path in {f"/{file.name}", f"/{file.name}".removesuffix("index.html")}:
            app.routes.append(Route(path, page, methods=["GET"]))
    return LimitedApp(app, hosts=hosts, any_address=any_address)
