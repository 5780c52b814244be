"""JSON with one thing wrong: what a reader must either refuse or take exactly as it is written."""

import copy
import math

from hypothesis import strategies as st

NAN_AND_INFINITY = st.sampled_from([math.nan, math.inf])
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.floats(-2, 2),
    NAN_AND_INFINITY,
    st.text(max_size=3),
    st.just([]),
    st.just({}),
)


def places(tree, path=()):
    """Paths to all entries of nested dicts and lists."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


def holder_of(tree, path):
    """The dict or list in which the last step of a path lies."""
    for key in path[:-1]:
        tree = tree[key]
    return tree


def changed(tree, *path, to):
    """A copy with one entry exchanged or added."""
    tree = copy.deepcopy(tree)
    holder_of(tree, path)[path[-1]] = to
    return tree


def without(tree, *path):
    """A copy with one entry deleted."""
    tree = copy.deepcopy(tree)
    del holder_of(tree, path)[path[-1]]
    return tree


def _added(tree, path, junk):
    tree = copy.deepcopy(tree)
    holder = holder_of(tree, path)
    if isinstance(holder, dict):
        holder["extra"] = junk
    else:
        holder.insert(path[-1], junk)
    return tree


def damaged(tree):
    """Copies with one entry exchanged, deleted or added anywhere."""
    paths = st.sampled_from(list(places(tree)))
    return st.one_of(
        st.builds(lambda path, junk: changed(tree, *path, to=junk), paths, JUNK),
        st.builds(lambda path: without(tree, *path), paths),
        st.builds(lambda path, junk: _added(tree, path, junk), paths, JUNK),
    )
