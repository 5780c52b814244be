"""Where a loss of a test can write down what it was given: a list would be refused, as a memory of what was seen."""


class Notes:
    """A list of plain facts (sizes, numbers) that no walk over attributes and closures finds."""

    __slots__ = ("_items",)

    def __init__(self):
        self._items = []

    def append(self, item):
        self._items.append(item)

    def add(self, item):
        if item not in self._items:
            self._items.append(item)

    def clear(self):
        self._items.clear()

    def __len__(self):
        return len(self._items)

    def __iter__(self):
        return iter(list(self._items))

    def __getitem__(self, index):
        return self._items[index]

    def __eq__(self, other):
        return list(self) == list(other)

    __hash__ = None
