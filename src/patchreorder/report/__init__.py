"""Reports: rows of a recipe, a measurement, or a fitted classifier as tables, figures and pages. Never imports torch.

| module | what it holds |
|---|---|
| `folder` | reads a folder of results; nothing in it is trusted |
| `tables`, `comparison` | the tables of a recipe, and paired tests between their rows |
| `sheets`, `text` | tables and numbers as text |
| `terminal`, `markdown`, `page` | the outputs; templates beside them |
| `drawing`, `line_chart`, `mark_chart` | everything that is drawn, with matplotlib |
| `figures`, `table_charts`, `operator_figures` | what is drawn: the paper's figures, charts of a table, the operator |
| `measured`, `measured_page` | the report of `patchreorder measure` |
| `fitted`, `fitted_page` | the report of `patchreorder fit` |

It may import `laboratory.rows`, `measuring.measurement`, `files` and `untrusted`.
"""
