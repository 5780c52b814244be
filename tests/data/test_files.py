from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from noisewise.data import files
from noisewise.data.files import FILES, Download, File, find
from noisewise.errors import ConfigError, DataError

needs_data = pytest.mark.skipif(not os.environ.get("NOISEWISE_DATA"), reason="NOISEWISE_DATA is not set")
CONTENT = b"published bytes"
NAME = "toys/toy.bin"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        self.server.asked.append(self.path)


@pytest.fixture
def publisher(tmp_path):
    """A local web server: its folder, its address, what it was asked for."""
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "toy.bin").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/", server.asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("NOISEWISE_DATA", raising=False)
    monkeypatch.setenv("NOISEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def register(
    monkeypatch, *urls: str, name: str = NAME, checksum: str = sha256(CONTENT), made=None, of: str = ""
) -> None:
    monkeypatch.setitem(FILES, name, File(checksum, Download(urls, of or f"sha256:{checksum}"), made))


def test_a_download_is_cached(publisher, cache, monkeypatch) -> None:
    _, address, asked = publisher
    register(monkeypatch, address + "toy.bin")
    assert find(NAME) == cache / NAME
    assert find(NAME).read_bytes() == CONTENT
    assert len(asked) == 1
    assert [path.name for path in cache.rglob("*")] == ["toys", "toy.bin"]


def test_the_users_own_file_comes_first(publisher, cache, monkeypatch, tmp_path) -> None:
    _, address, asked = publisher
    register(monkeypatch, address + "toy.bin")
    (tmp_path / "mine" / "toys").mkdir(parents=True)
    (tmp_path / "mine" / NAME).write_bytes(CONTENT)
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path / "mine"))
    assert find(NAME) == tmp_path / "mine" / NAME
    assert not asked
    (tmp_path / "mine" / NAME).unlink()
    assert find(NAME) == cache / NAME


def test_a_wrong_file_of_the_user_is_refused_although_a_right_one_could_be_had(
    publisher, cache, monkeypatch, tmp_path
) -> None:
    _, address, asked = publisher
    register(monkeypatch, address + "toy.bin")
    (tmp_path / "mine" / "toys").mkdir(parents=True)
    (tmp_path / "mine" / NAME).write_bytes(b"other bytes")
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path / "mine"))
    with pytest.raises(DataError, match=rf"\$NOISEWISE_DATA/{NAME}.*{sha256(b'other bytes')}.*{sha256(CONTENT)}"):
        find(NAME)
    assert not asked
    (tmp_path / "mine" / NAME).unlink()
    (tmp_path / "mine" / NAME).mkdir()
    with pytest.raises(DataError, match=rf"\$NOISEWISE_DATA/{NAME} cannot be read"):
        find(NAME)


def test_a_damaged_cached_file_is_refused_with_both_checksums(publisher, cache, monkeypatch) -> None:
    _, address, asked = publisher
    register(monkeypatch, address + "toy.bin")
    find(NAME).write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=rf"{sha256(CONTENT[:-1])}, expected {sha256(CONTENT)}.*Delete it") as error:
        find(NAME)
    assert str(cache / NAME) in str(error.value)
    (cache / NAME).unlink()
    assert find(NAME).read_bytes() == CONTENT
    assert len(asked) == 2


def test_mirrors_are_tried_in_order(publisher, cache, monkeypatch) -> None:
    folder, address, asked = publisher
    (folder / "login.html").write_bytes(b"please log in")
    register(monkeypatch, address + "gone.bin", address + "login.html", address + "toy.bin")
    assert find(NAME).read_bytes() == CONTENT
    assert list(dict.fromkeys(asked)) == ["/gone.bin", "/login.html", "/toy.bin"]


def test_a_download_with_another_checksum_is_refused_and_not_kept(publisher, cache, monkeypatch) -> None:
    folder, address, _ = publisher
    (folder / "toy.bin").write_bytes(b"changed bytes")
    register(monkeypatch, address + "toy.bin")
    with pytest.raises(DataError, match=rf"{sha256(CONTENT)}.*{sha256(b'changed bytes')}"):
        find(NAME)
    assert not (cache / NAME).exists()


def test_without_a_network_the_error_says_what_to_put_where(cache, monkeypatch, tmp_path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        port = server.server_port  # free again below, so nobody answers
    register(monkeypatch, f"http://127.0.0.1:{port}/toy.bin")
    said = r"NOISEWISE_DATA is not set.*Put toy.bin into a folder toys/.*onnection refused\.$"
    with pytest.raises(DataError, match=said) as error:
        find(NAME)
    assert str(error.value).count(str(port)) == 1  # libraries for the network repeat the address
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=rf"\$NOISEWISE_DATA/{NAME} does not exist"):
        find(NAME)


def archive(**members: bytes) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def test_an_archive_is_fetched_once_and_only_the_named_members_are_written(publisher, cache, monkeypatch) -> None:
    folder, address, asked = publisher
    packed = archive(**{"in/a": b"A", "in/b": b"B", "../../outside": b"no"})
    (folder / "all.tar.gz").write_bytes(packed)
    md5 = f"md5:{hashlib.md5(packed).hexdigest()}"
    for letter in "ab":
        made = files.member(f"in/{letter}")
        checksum = sha256(letter.upper().encode())
        register(monkeypatch, address + "all.tar.gz", name=f"toys/in/{letter}", checksum=checksum, made=made, of=md5)
    assert [find(f"toys/in/{letter}").read_bytes() for letter in "ab"] == [b"A", b"B"]
    assert len(asked) == 1
    written = {path.relative_to(cache.parent).as_posix() for path in cache.parent.rglob("*") if path.is_file()}
    assert written == {"cache/toys/in/a", "cache/toys/in/b", "published/toy.bin", "published/all.tar.gz"}


def test_an_archive_without_the_member_is_named(publisher, cache, monkeypatch) -> None:
    folder, address, _ = publisher
    packed = archive(other=b"x")
    (folder / "all.tar.gz").write_bytes(packed)
    register(monkeypatch, address + "all.tar.gz", made=files.member("toy"), of=f"sha256:{sha256(packed)}")
    with pytest.raises(DataError, match=r"all.tar.gz holds no readable toy"):
        find(NAME)


def test_who_fetches_the_same_archive_at_the_same_time_does_not_take_it_away(publisher, cache, monkeypatch) -> None:
    _, address, asked = publisher

    def made(path: Path) -> bytes:
        if len(asked) == 1:  # another process comes, fetches, and is done before this one has read anything
            files._download(NAME, FILES[NAME], cache / NAME)
        return path.read_bytes()

    register(monkeypatch, address + "toy.bin", made=made, of=f"sha256:{sha256(CONTENT)}")
    assert find(NAME).read_bytes() == CONTENT
    assert len(asked) == 2
    assert [path.name for path in cache.rglob("*")] == ["toys", "toy.bin"]


def test_what_cannot_be_made_leaves_nothing_behind(publisher, cache, monkeypatch) -> None:
    _, address, _ = publisher

    def full(path: Path) -> bytes:
        raise OSError(28, "No space left on device")

    register(monkeypatch, address + "toy.bin", made=full, of=f"sha256:{sha256(CONTENT)}")
    with pytest.raises(DataError, match=r"No space left on device.*NOISEWISE_CACHE"):
        find(NAME)
    assert list(cache.rglob("*")) == []


def test_a_made_file_is_checked_too(publisher, cache, monkeypatch) -> None:
    _, address, _ = publisher
    register(
        monkeypatch, address + "toy.bin", made=lambda path: path.read_bytes()[::-1], of=f"sha256:{sha256(CONTENT)}"
    )
    with pytest.raises(DataError, match=rf"{sha256(CONTENT[::-1])}, expected {sha256(CONTENT)}"):
        find(NAME)


def test_a_cache_that_cannot_be_written_is_an_error(publisher, monkeypatch, tmp_path) -> None:
    _, address, _ = publisher
    monkeypatch.delenv("NOISEWISE_DATA", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NOISEWISE_CACHE", str(tmp_path / "file"))
    register(monkeypatch, address + "toy.bin")
    with pytest.raises(DataError, match="NOISEWISE"):
        find(NAME)


def test_the_default_cache_is_the_systems(monkeypatch) -> None:
    monkeypatch.delenv("NOISEWISE_CACHE", raising=False)
    assert files.cache().name == "noisewise"


def test_unknown_files_are_refused() -> None:
    with pytest.raises(ConfigError, match="'mnist/x': unknown"):
        find("mnist/x")


def test_housing_is_the_publishers_values_under_a_header(tmp_path) -> None:
    raw = b"-122.230000,37.880000,41.000000,880.000000,129.000000,322.000000,126.000000,8.325200,452600.000000\n"
    (tmp_path / "cal_housing.tgz").write_bytes(archive(**{"CaliforniaHousing/cal_housing.data": raw}))
    made = files._with_header(tmp_path / "cal_housing.tgz").decode().splitlines()
    assert made[0].split(",")[::8] == ["longitude", "medianHouseValue"]
    assert made[1:] == ["-122.23,37.88,41.0,880.0,129.0,322.0,126.0,8.3252,452600.0"]


def test_compas_loses_the_names_and_nothing_else(tmp_path) -> None:
    table = "id,name,first,last,sex,dob,c_case_number,priors_count,r_case_number,vr_case_number,priors_count\r\n"
    (tmp_path / "t.csv").write_bytes((table + '1,"a, b",a,b,Male,1990,x,3,,,"4,5"\r\n').encode())
    assert files._without_names(tmp_path / "t.csv") == b'id,sex,priors_count,priors_count\n1,Male,3,"4,5"\n'


NOT_HAD = ("cifar10", "svhn", "snli")  # rebuilt elsewhere, or too large to keep


@needs_data
@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(NOT_HAD)])
def test_every_file_is_there_with_its_checksum(name: str) -> None:
    assert find(name) == Path(os.environ["NOISEWISE_DATA"]) / name


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("HTTPSConnection(host='a'): Failed: not found."), "HTTPSConnection(host='a'): Failed: not found"),
        (OSError("404 for url: http://a/(b): c"), "404 for url: http://a/(b): c"),
        (OSError(SimpleNamespace(reason="Connection(host='a', port=443): no route to host.")), "no route to host"),
        (TimeoutError(), "TimeoutError"),
        (ConnectionResetError(SimpleNamespace(reason=None)), "namespace(reason=None)"),
    ],
)
def test_what_went_wrong_with_a_download_is_said(error, words) -> None:
    """Without the address again where a library wrapped the reason, and never without a word."""
    assert files._reason(error) == words


def test_every_download_has_a_checksum_and_an_address() -> None:
    for name, file in FILES.items():
        kind, _, digest = file.download.checksum.partition(":")
        assert len(digest) == {"sha256": 64, "md5": 32}[kind], name
        assert len(file.sha256) == 64
        assert all(url.startswith("http") for url in file.download.urls)
        assert file.made is not None or file.download.checksum == f"sha256:{file.sha256}"
