"""Ways to see reordering at work: a page with its server (`patchreorder play`), and the figures of `patchreorder demo`.

| module | holds |
|---|---|
| `page/` | the page: HTML, CSS and JavaScript modules, no build step |
| `app` | the web application: the page's files and the routes below `/api` |
| `limits`, `connections` | which requests are answered, and how large and slow they and their connections may be |
| `requests` | the JSON of a request, parsed and checked |
| `digits`, `networks`, `photographs`, `layer_view` | what the routes compute |
| `pool`, `cache` | worker threads with a bounded queue; the most recent results |
| `server` | the socket, and uvicorn |
| `scene`, `demo` | the drawn key and leaf, and what `patchreorder demo` measures and plots on them |

It may import everything but `classifier` and `commands`. Everything it shows is computed by the library.
"""
