"""Make what a rehearsal on this machine needs: a certificate authority, the server's certificate, keys of nodes.

    python make_keys.py keys 3     # ca.crt, server.pem, server.key; node0, node0.pub, ... node2.pub; roster.txt

It calls openssl and ssh-keygen. In a real federation each node makes its own key and hands over only the .pub file.
"""

import subprocess
import sys
from pathlib import Path

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def call(command: str, folder: Path) -> None:
    """Run a command in a folder; say what it said if it fails."""
    done = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr}")


def make(folder: Path, nodes: int) -> None:
    """Write certificates and keys into a new folder that only its owner can read."""
    folder.mkdir(mode=0o700, parents=True)
    (folder / "names.cnf").write_text(NAMES + "\n", encoding="utf-8")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes"
    call(f"openssl req -x509 {key} -keyout ca.key -out ca.crt -days 365 -subj /CN=rehearsal", folder)
    call(f"openssl req {key} -keyout server.key -out server.csr -subj /CN=localhost", folder)
    sign = "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial"
    call(f"{sign} -out server.pem -days 365 -extfile names.cnf", folder)
    for node in range(nodes):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"node{node}"], cwd=folder, check=True
        )
    roster = [f"{node} {(folder / f'node{node}.pub').read_text(encoding='utf-8')}" for node in range(nodes)]
    (folder / "roster.txt").write_text("".join(roster), encoding="utf-8")  # for secure aggregation


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        raise SystemExit(__doc__)
    make(Path(sys.argv[1]), int(sys.argv[2]))
