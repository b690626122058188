"""See images.py; built from _planes.c where there is a compiler."""

def split(
    to: int,
    source: int,
    height: int,
    width: int,
    row_bytes: int,
    pixel_bytes: int,
    item_bytes: int,
    /,
) -> None: ...
def convert(to: int, source: int, n_pixels: int, /) -> None: ...
def pixels_of(schema: object, array: object, /) -> tuple[int, int] | None: ...
