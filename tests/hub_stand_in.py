"""A hub of models in this process: as much of the HTTP interface as pushing and fetching need."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


class Hub:
    """Repositories with their commits, oldest first."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, Files]] = {}
        self.private: dict[str, bool] = {}
        self.sizes: dict[str, int] = {}
        """of files that are said to be larger than they are"""
        self.address = ""

    def files(self, repo: str, revision: str) -> tuple[str, Files]:
        """The commit that a revision names, and its files. Raises KeyError."""
        commits = self.commits[repo]
        commit = list(commits)[-1] if revision == "main" else revision
        return commit, commits[commit]

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> str:
        _, before = self.files(repo, "main")
        files = dict(before)
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        name = hashlib.sha1(f"{repo} {len(self.commits[repo])}".encode()).hexdigest()
        self.commits[repo][name] = files
        return name


@contextmanager
def stand_in() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def answer(self, code: int, content: Any = b"", **headers: str) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).strip("/").split("/")
            try:
                if path[0] == "api":
                    self.ask(path[2:])
                else:
                    repo, _, revision, file = "/".join(path[:2]), *path[2:4], "/".join(path[4:])
                    commit, files = hub.files(repo, revision)
                    etag = f'"{hashlib.sha1(files[file]).hexdigest()}"'
                    self.answer(200, files[file], X_Repo_Commit=commit, ETag=etag)
            except KeyError:
                code = "RevisionNotFound" if "/".join(path[2:4]) in hub.commits else "RepoNotFound"
                self.answer(404, {"error": "not here"}, X_Error_Code=code)

        do_HEAD = do_GET

        def ask(self, path: list[str]) -> None:
            repo, what = "/".join(path[:2]), path[2:]
            commit, files = hub.files(repo, what[1] if what else "main")
            if what[:1] == ["tree"]:
                sizes = {name: len(content) for name, content in files.items()}
                oid = "0" * 40
                listing = [{"type": "file", "path": n, "size": size, "oid": oid} for n, size in sizes.items()]
                self.answer(200, listing)
                return
            about = {"id": repo, "modelId": repo, "sha": commit, "private": False, "tags": [], "downloads": 0}
            siblings = [{"rfilename": name, "size": hub.sizes.get(name, len(files[name]))} for name in files]
            self.answer(200, about | {"siblings": siblings})

        def do_POST(self) -> None:
            path = urlsplit(self.path).path.strip("/").split("/")
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if path[1:] == ["repos", "create"]:
                asked = json.loads(body)
                repo = f"{asked.get('organization', 'me')}/{asked['name']}"
                hub.commits.setdefault(repo, {"0" * 40: {}})
                hub.private[repo] = bool(asked.get("private") or asked.get("visibility") == "private")
                self.answer(200, {"url": f"{hub.address}/{repo}"})
                return
            if path[1] != "models":  # such as a look at the card's metadata
                self.answer(200, {"errors": [], "warnings": []})
                return
            repo, what = "/".join(path[2:4]), path[4]
            if what == "preupload":
                names = [each["path"] for each in json.loads(body)["files"]]
                how = {"uploadMode": "regular", "shouldIgnore": False}
                self.answer(200, {"files": [{"path": name, **how} for name in names]})
            else:
                name = hub.commit(repo, [json.loads(line) for line in body.splitlines()])
                self.answer(200, {"commitUrl": f"{hub.address}/{repo}/commit/{name}", "commitOid": name})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
