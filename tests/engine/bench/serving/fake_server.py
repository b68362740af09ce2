"""A server of words, each answer as long as asked: `python fake_server.py PORT [how it misbehaves]`."""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

misbehave = sys.argv[2] if len(sys.argv) > 2 else ""
if misbehave == "dies":
    print("no such model")
    sys.exit(3)

METRICS = """# TYPE resispec_step_seconds histogram
resispec_step_seconds_bucket{{model="fake",phase="verify",le="0.1"}} 3.0
resispec_step_seconds_sum{{model="fake",phase="verify"}} {verify}
resispec_step_seconds_sum{{model="fake",phase="send"}} {send}
resispec_inter_token_latency_seconds_sum{{model="fake"}} 7.0
"""
posts = 0
asks = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *_):
        pass

    def do_GET(self):
        global asks
        self.send_response(200)
        self.end_headers()
        if self.path == "/metrics":
            self.wfile.write(METRICS.format(verify=posts * 0.01, send=posts * 0.002).encode())
            return
        asks += 1
        state = "building" if asks < 4 and misbehave == "compiles" else "on"
        compilation = {"state": state, "note": ""}
        if misbehave == "cannot compile":
            compilation = {"state": "failed", "note": "no compiler was found"}
        self.wfile.write(json.dumps({"data": [{"id": "fake", "compilation": compilation}]}).encode())

    def do_POST(self):
        global posts
        posts += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") not in (None, "Bearer secret"):
            self.send_error(401)
            return
        self.send_response(200)
        self.end_headers()
        tokens = body["max_tokens"] - (misbehave == "short")
        long = len(body.get("prompt", ())) > 50
        time.sleep(0.15 if long else 0.0)
        for _ in range(tokens):
            time.sleep(0.005)
            choice = {"delta": {"content": "x"}} if "messages" in body else {"text": "x"}
            self.send({"choices": [choice]})
        self.send({"choices": [], "usage": {"completion_tokens": tokens}})

    def send(self, event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
