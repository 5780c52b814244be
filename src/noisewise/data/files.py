"""Publishers' files: given by the user, cached, or downloaded; never used unless the checksum is the published one."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from noisewise.errors import ConfigError, DataError
from noisewise.runs.files import settle


@dataclass(frozen=True)
class Download:
    """What a publisher offers: the same bytes at several addresses, and their checksum (`sha256:...` or `md5:...`)."""

    urls: tuple[str, ...]
    checksum: str


@dataclass(frozen=True)
class File:
    """A file that a loader reads, where it comes from, and how it is made of the download (None: it is the download)."""

    sha256: str
    download: Download
    made: Callable[[Path], bytes] | None = None


def find(name: str) -> Path:
    """The file `name`, e.g. `mnist/train-images-idx3-ubyte.gz`, with the published checksum.

    Looked for in this order: `$NOISEWISE_DATA/name`, the cache (`$NOISEWISE_CACHE`, else the system's place for caches),
    the publisher's addresses. Guarantee: a file with another checksum is an error, wherever it was found.
    """
    if name not in FILES:
        raise ConfigError(f"file {name!r}: unknown. Known files: {', '.join(FILES)}.")
    file, root = FILES[name], os.environ.get("NOISEWISE_DATA")
    if root and os.path.lexists(given := Path(root) / name):
        return _verified(given, file.sha256, f"$NOISEWISE_DATA/{name}", "Put the publisher's file there")
    cached = cache() / name
    if not os.path.lexists(cached):
        _download(name, file, cached)
    return _verified(cached, file.sha256, f"the cached {cached}", "Delete it, and it is downloaded again")


def cache() -> Path:
    """Where downloads are kept."""
    import pooch

    return Path(os.environ.get("NOISEWISE_CACHE") or pooch.os_cache("noisewise"))


def _verified(path: Path, expected: str, shown: str, remedy: str) -> Path:
    """The path, if its content has the checksum."""
    try:
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{shown} cannot be read ({error.strerror}). {remedy}.") from None
    if digest != expected:
        raise DataError(
            f"{shown} is not the published file: its sha256 is {digest}, expected {expected}. It is damaged or another "
            f"version. {remedy}."
        )
    return path


def _download(name: str, file: File, target: Path) -> None:
    """Put the file, and whatever else its download holds, into the cache."""
    if file.made is None:
        _retrieve(name, file.download, target)
        return
    with _scratch(cache()) as folder:
        archive = _retrieve(name, file.download, folder / _base(file.download.urls[0]))
        for other, sibling in FILES.items():
            if sibling.download == file.download and sibling.made is not None:
                _write(cache() / other, sibling.made(archive))


def _retrieve(name: str, download: Download, target: Path) -> Path:
    """The download, from the first address that gives the published bytes."""
    import pooch

    failures = []
    for url in download.urls:
        try:
            return Path(pooch.retrieve(url, known_hash=download.checksum, fname=target.name, path=target.parent))
        except (OSError, ValueError) as error:  # every error of requests is an OSError; ValueError: another checksum
            failures.append(f"{url}: {_reason(error)}")
    folder, _, base = name.rpartition("/")
    unset = not os.environ.get("NOISEWISE_DATA")
    missing = "NOISEWISE_DATA is not set" if unset else f"$NOISEWISE_DATA/{name} does not exist"
    raise DataError(
        f"{folder}: {missing}, and no download of {_base(download.urls[0])} worked. Put {base} into a folder {folder}/, and "
        f"set NOISEWISE_DATA to the folder above it; or try again with a network. Tried: {'; '.join(failures)}."
    )


def _reason(error: Exception) -> str:
    """What went wrong in the end: libraries for the network wrap it in errors of their own, which repeat the address."""
    inner = getattr(error.args[0], "reason", None) if error.args else None
    words = str(error) if inner is None else str(inner).rpartition("): ")[2]
    return words.rstrip(".") or type(error).__name__


def _base(url: str) -> str:
    return url.rpartition("/")[2]


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, also when several processes fill the cache."""
    with _scratch(path.parent) as folder:
        (folder / path.name).write_bytes(content)
        settle(folder / path.name, path)


@contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A folder in `place` for this call alone, gone afterwards: others may fetch the same file at the same time."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".") as folder:
            yield Path(folder)
    except OSError as error:
        raise DataError(
            f"{place} could not be written ({error.strerror}). Free space, or set NOISEWISE_CACHE to another folder."
        ) from None


def member(name: str) -> Callable[[Path], bytes]:
    """One file of a tar archive, read by name: nothing else in the archive is written anywhere."""

    def read(archive: Path) -> bytes:
        try:
            with tarfile.open(archive) as tar:
                content = tar.extractfile(name)
                if content is None:
                    raise KeyError(name)
                return content.read()
        except (KeyError, tarfile.TarError, EOFError, OSError) as error:
            raise DataError(
                f"{archive.name} holds no readable {name} ({error}): the publisher has changed it. Use a newer noisewise."
            ) from None

    return read


def zipped(name: str) -> Callable[[Path], bytes]:
    """One file of a zip archive, read by name."""

    def read(archive: Path) -> bytes:
        try:
            with zipfile.ZipFile(archive) as content:
                return content.read(name)
        except (KeyError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise DataError(
                f"{archive.name} holds no readable {name} ({error}): the publisher has changed it. Use a newer noisewise."
            ) from None

    return read


def _without_last_newline(text: Path) -> bytes:
    return text.read_bytes().removesuffix(b"\n").removesuffix(b"\r")


def _with_header(archive: Path) -> bytes:
    """California Housing as a CSV file: the publisher's values, shortest decimals, under a line with their names."""
    raw = member("CaliforniaHousing/cal_housing.data")(archive).decode()
    columns = "longitude,latitude,housingMedianAge,totalRooms,totalBedrooms,population,households,medianIncome,medianHouseValue"
    lines = [",".join(str(float(value)) for value in line.split(",")) for line in raw.split()]
    return "".join(f"{line}\n" for line in [columns, *lines]).encode()


NAMING = {"name", "first", "last", "dob", "c_case_number", "r_case_number", "vr_case_number"}


def _without_names(table: Path) -> bytes:
    """COMPAS without the columns that name people; nothing else is changed."""
    with table.open(newline="") as file:
        lines = list(csv.reader(file))
    kept = [place for place, column in enumerate(lines[0]) if column not in NAMING]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[line[place] for place in kept] for line in lines])
    return text.getvalue().encode()


def _plain(folder: str, bases: tuple[str, ...], **checksums: str) -> dict[str, File]:
    """Files that are used as they are, below one or several addresses."""
    return {
        f"{folder}/{name}": File(checksum, Download(tuple(base + name for base in bases), f"sha256:{checksum}"))
        for name, checksum in checksums.items()
    }


_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_HOUSES = "http://ufldl.stanford.edu/housenumbers/"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_CIFAR = Download(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), "md5:c32a1d4ab5d03f1284b67883e8d87530")
_HOUSING = Download(
    (
        "https://www.dcc.fc.up.pt/~ltorgo/Regression/cal_housing.tgz",
        "https://ndownloader.figshare.com/files/5976036",
    ),
    "sha256:aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
)
_SST2 = Download(
    ("https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",),
    "sha256:d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
)
_SICK = "https://raw.githubusercontent.com/brmson/dataset-sts/master/data/sts/sick2014/"
_COMPAS = Download(
    ("https://raw.githubusercontent.com/propublica/compas-analysis/master/compas-scores-two-years.csv",),
    "md5:9165d40c400bba93a8cffece2b74622b",
)

FILES: dict[str, File] = {
    **_plain(
        "mnist",
        _MNIST,
        **{
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    **_plain(
        "fashion_mnist",
        _FASHION,
        **{
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    **{
        f"cifar10/{batch}": File(sha256, _CIFAR, member(batch))
        for batch, sha256 in {
            "cifar-10-batches-bin/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "cifar-10-batches-bin/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "cifar-10-batches-bin/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "cifar-10-batches-bin/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "cifar-10-batches-bin/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "cifar-10-batches-bin/test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        }.items()
    },
    **_plain(
        "cifar100",
        ("https://www.cs.toronto.edu/~kriz/",),
        **{"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"},
    ),
    **_plain(
        "svhn",
        (_HOUSES,),
        **{
            "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            "extra_32x32.mat": "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
        },
    ),
    **_plain(
        "tabular",
        (f"{_UCI}adult/",),
        **{
            "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        },
    ),
    **_plain(
        "tabular",
        (f"{_UCI}statlog/german/",),
        **{"german.data": "b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871"},
    ),
    **_plain(
        "tabular",
        (f"{_UCI}wine-quality/",),
        **{
            "winequality-red.csv": "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
            "winequality-white.csv": "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
        },
    ),
    "text/sst2_train.tsv": File(
        "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1", _SST2, zipped("SST-2/train.tsv")
    ),
    "text/sst2_dev.tsv": File(
        "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0", _SST2, zipped("SST-2/dev.tsv")
    ),
    "text/sick_train.tsv": File(
        "bde4f920573a7210f357e83df318877aaa167c5e4dee752d3d7f0ecb99d0483c",
        Download(
            (f"{_SICK}SICK_train.txt",), "sha256:266cf8047149bd1d68138dd30439f3122bff30069740ac6705bb6197d9f1b48e"
        ),
        _without_last_newline,
    ),
    "text/sick_trial.tsv": File(
        "5a88cfb62f8c6bd2a3cce0f2421ba2cb8c2be5ab4a800f6f01e2c64aafb7db56",
        Download(
            (f"{_SICK}SICK_trial.txt",), "sha256:5a88cfb62f8c6bd2a3cce0f2421ba2cb8c2be5ab4a800f6f01e2c64aafb7db56"
        ),
    ),
    "text/sick_test.tsv": File(
        "fed88778e4c68e6ea698a5d8cbc34e10d7736534a84d29dae426e40e759b576e",
        Download(
            (f"{_SICK}SICK_test_annotated.txt",),
            "sha256:2b8aa806658d6fc23c6824c83776c2d4fee7556000817b5ec0f982861413b7d0",
        ),
        _without_last_newline,
    ),
    **_plain(
        "snli",
        ("https://nlp.stanford.edu/projects/snli/",),
        **{"snli_1.0.zip": "afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e"},
    ),
    "tabular/california_housing.csv": File(
        "81dc3561d0438eb382b21ecd53837b844e50fba0058a39cfba37009b2687b72c", _HOUSING, _with_header
    ),
    "tabular/compas-two-years.csv": File(
        "a5e5c34bfd2d1f065bb12a44c0323421baf74b98b97d585915a0c2e1513ecaba", _COMPAS, _without_names
    ),
}
"""Every file by its place below `$NOISEWISE_DATA` or the cache.

California Housing and COMPAS are read in a form made here from the publisher's file (`made`)."""
