"""Downloads against a real local server: whole, wrong, cut off, absent, killed, and several at once."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedreach._util.errors import DataError
from fedreach.data.sets import load
from fedreach.data.sets.download import Place, Source, data_folder, fetch, sources

from ..conftest import wait_until  # noqa: TID252 (tests are no package that has a name)
from ..terminals import on_terminal  # noqa: TID252

REAL = Path(os.environ.get("FEDREACH_DATA") or Path(__file__).parents[3] / "shared" / "data")
CONTENT = np.random.Generator(np.random.Philox(3)).bytes(300_000)
PATH = "toy/raw/toy.gz"


class Server(BaseHTTPRequestHandler):
    """Serves `files`; under /cut/ it closes half-way, under /slow/ it waits half-way until `go` is set."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    half_way = threading.Event()
    go = threading.Event()

    def do_GET(self):
        fault, _, path = self.path.lstrip("/").partition("/")
        content = self.files.get(path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            self.send_header("Content-Encoding", "gzip")  # as some servers do with a .gz: clients then unpack it
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        if fault == "cut":
            self.close_connection = True
            return
        if fault == "slow":
            self.half_way.set()
            self.go.wait(30)
        self.wfile.write(content[len(content) // 2 :])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("FEDREACH_MIRROR", raising=False)
    handler = type("Handler", (Server,), {"files": {}, "half_way": threading.Event(), "go": threading.Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=partial(http.serve_forever, poll_interval=0.01))
        thread.start()
        handler.address = f"http://127.0.0.1:{http.server_port}"
        handler.files |= {PATH: CONTENT, "toy.gz": CONTENT}
        yield handler
        handler.go.set()
        http.shutdown()
        thread.join()


def toy(*mirrors: str, content: bytes = CONTENT) -> Source:
    checksum = "sha256:" + hashlib.sha256(content).hexdigest()
    return Source("toy", "", "", "https://home.example", "", ["toy/raw"], mirrors, {PATH: checksum})


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_a_file_is_downloaded_to_its_place_once(server, tmp_path):
    source = toy(f"{server.address}/ok/")
    place = Place(tmp_path)
    path = place.locate(source, [PATH])
    assert (path, path.read_bytes(), files(tmp_path)) == (tmp_path / PATH, CONTENT, ["toy.gz"])
    server.files.clear()
    assert place.locate(source, [PATH]) == path


def test_the_next_mirror_is_tried_when_one_fails(server, tmp_path):
    mirrors = [f"{server.address}/{fault}/" for fault in ("cut", "absent/folder", "ok")]
    assert fetch(PATH, toy(*mirrors), tmp_path).read_bytes() == CONTENT
    assert files(tmp_path) == ["toy.gz"]


def test_a_wrong_download_is_removed_and_the_message_has_both_checksums(server, tmp_path):
    source = toy(f"{server.address}/ok/")
    server.files["toy.gz"] = CONTENT[:-1] + b"!"
    got = hashlib.sha256(server.files["toy.gz"]).hexdigest()
    with pytest.raises(DataError) as caught:
        fetch(PATH, source, tmp_path)
    for part in ("toy.gz", source.files[PATH], got, str(tmp_path / PATH), "FEDREACH_DATA", "https://home.example"):
        assert part in str(caught.value)
    assert files(tmp_path) == []
    server.files["toy.gz"] = CONTENT
    assert fetch(PATH, source, tmp_path).read_bytes() == CONTENT


def test_a_download_cut_off_leaves_nothing_and_the_next_one_works(server, tmp_path):
    with pytest.raises(DataError, match=r"(?s)could not download toy.gz.*/cut/toy.gz: .* 150000 bytes early"):
        fetch(PATH, toy(f"{server.address}/cut/"), tmp_path)
    assert files(tmp_path) == []
    assert fetch(PATH, toy(f"{server.address}/ok/"), tmp_path).read_bytes() == CONTENT


def test_without_a_server_the_message_says_which_file_to_place_where(server, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as closed:
        address = f"http://127.0.0.1:{closed.server_port}/"
    with pytest.raises(DataError, match=rf"(?s){address}toy.gz: .*[Rr]efused.*Place the file.* at {tmp_path / PATH}"):
        fetch(PATH, toy(address), tmp_path)
    assert files(tmp_path) == []


def test_download_can_be_forbidden(server, tmp_path):
    with pytest.raises(DataError, match=rf"{PATH} not found in .*downloads are off. Place the file .*sha256"):
        Place(tmp_path, download=False).locate(toy(f"{server.address}/ok/"), [PATH])
    assert files(tmp_path) == []


def test_a_mirror_of_ones_own_replaces_the_public_addresses(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDREACH_MIRROR", f"{server.address}/ok/")
    del server.files["toy.gz"]  # only the full place in the data folder is left
    assert fetch(PATH, toy("http://127.0.0.1:1/"), tmp_path).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_made_is_named(server, tmp_path):
    (tmp_path / "toy").touch()
    with pytest.raises(DataError, match=rf"cannot write the data folder {tmp_path}.*Set FEDREACH_DATA"):
        fetch(PATH, toy(f"{server.address}/ok/"), tmp_path)


def test_the_data_folder_is_the_argument_then_the_environment_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDREACH_DATA", str(tmp_path / "env"))
    assert data_folder(tmp_path / "argument") == tmp_path / "argument"
    assert data_folder() == tmp_path / "env"
    monkeypatch.setenv("FEDREACH_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder().name == "fedreach"
    assert data_folder() != Path()


def test_progress_says_what_is_fetched_and_silence_is_the_default(server, tmp_path, capfd):
    fetch(PATH, toy(f"{server.address}/ok/"), tmp_path / "a")
    assert capfd.readouterr() == ("", "")
    fetch(PATH, toy(f"{server.address}/ok/"), tmp_path / "b", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"downloading {server.address}/ok/toy.gz to {tmp_path / 'b' / PATH}\n"


def test_on_a_terminal_a_bar_says_how_far_it_is_and_vanishes(server, tmp_path):
    with on_terminal(100) as terminal:
        source = toy(f"{server.address}/slow/")
        thread = threading.Thread(target=fetch, args=(PATH, source, tmp_path), kwargs={"progress": True})
        thread.start()
        assert server.half_way.wait(30)
        wait_until(lambda: "0.1/0.3 MB" in terminal.text)  # whole blocks of half of it
        bar = terminal.now()[-1]
        server.go.set()
        thread.join()
    assert bar.startswith("toy.gz ━")
    assert " 0.1/0.3 MB 0:00:0" in bar
    assert terminal.lines()[0].startswith(f"downloading {server.address}/slow/toy.gz to ")
    assert not [line for line in terminal.lines() if line.startswith("toy")]


CHILD = """
import sys
from pathlib import Path
from fedreach.data.sets.download import Source, fetch
address, path, checksum, folder = sys.argv[1:]
print(fetch(path, Source("toy", "", "", "", "", [], [address], {path: checksum}), Path(folder)).stat().st_size)
"""


def child(address: str, folder: Path) -> subprocess.Popen[str]:
    arguments = [address, PATH, toy().files[PATH], str(folder)]
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_several_processes_at_once_all_get_the_whole_file(server, tmp_path):
    children = [child(f"{server.address}/slow/", tmp_path) for _ in range(3)]
    assert server.half_way.wait(30)
    assert not (tmp_path / PATH).exists()
    server.go.set()
    assert [process.communicate(timeout=60)[0] for process in children] == [f"{len(CONTENT)}\n"] * 3
    assert files(tmp_path) == ["toy.gz"]


def test_a_process_killed_half_way_leaves_nothing_that_is_taken_for_data(server, tmp_path):
    process = child(f"{server.address}/slow/", tmp_path)
    assert server.half_way.wait(30)
    process.kill()
    process.communicate()
    assert not (tmp_path / PATH).exists()
    assert Place(tmp_path).locate(toy(f"{server.address}/ok/"), [PATH]).read_bytes() == CONTENT


def test_a_whole_data_set_is_downloaded_checked_and_loaded(server, tmp_path, monkeypatch):
    mnist = sources()["mnist"]
    if not all((REAL / path).exists() for path in mnist.files):
        pytest.skip("MNIST/raw is not in the data folder; set FEDREACH_DATA")
    server.files.update({path: (REAL / path).read_bytes() for path in mnist.files})
    monkeypatch.setenv("FEDREACH_MIRROR", f"{server.address}/ok")
    data = load("mnist", tmp_path)
    assert data.sha256 == load("mnist", REAL, download=False).sha256
    assert sorted(files(tmp_path)) == sorted(Path(path).name for path in mnist.files)


def test_a_download_of_the_wrong_set_is_refused_by_name(server, tmp_path, monkeypatch):
    for path in sources()["fashion_mnist"].files:
        server.files[path] = gzip.compress(b"not it")
    monkeypatch.setenv("FEDREACH_MIRROR", f"{server.address}/ok")
    with pytest.raises(DataError, match=r"data set 'fashion_mnist': could not download train-images-idx3-ubyte.gz"):
        load("fashion_mnist", tmp_path)
    assert files(tmp_path) == []
