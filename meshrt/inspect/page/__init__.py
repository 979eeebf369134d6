"""A report as one self-contained HTML page (`document.py`).

`folding.py` sorts a program's operations into trees of groups, `layout.py` puts the members of each group into rows,
`data.py` makes columns of it. `src` is the page's own JavaScript and style; `make page` bundles it with what
`package.json` names into `bundle`, which is what is shipped.
"""
