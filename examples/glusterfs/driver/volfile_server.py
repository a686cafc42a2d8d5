"""Stands in for glusterd: gives clients their volfile over GlusterFS' own protocol, which fio's gfapi engine requires.

Sun RPC (RFC 5531) over TCP, one program, one procedure: GETSPEC of the handshake.
"""

import socketserver
import struct
import threading

PORT = 24007  # fixed in fio's engine
HANDSHAKE_PROGRAM = 14398633
GETSPEC = 2
ACCEPTED, SUCCESS, PROCEDURE_UNAVAILABLE = 0, 0, 3


def opaque(data):
    """XDR: length, bytes, and zeros up to the next multiple of four."""
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def answer(call, volfile):
    """The reply to a call: a header, and for GETSPEC also result, errno, volfile and empty further data."""
    xid, _, _, program, _, procedure = struct.unpack_from(">6I", call)
    known = (program, procedure) == (HANDSHAKE_PROGRAM, GETSPEC)
    status = SUCCESS if known else PROCEDURE_UNAVAILABLE
    header = struct.pack(">6I", xid, 1, ACCEPTED, 0, 0, status)
    return header + struct.pack(">ii", len(volfile), 0) + opaque(volfile) + opaque(b"") if known else header


class Connection(socketserver.StreamRequestHandler):
    """One client. Each record is a length, whose top bit marks the last fragment, and a message."""

    def handle(self):
        while head := self.rfile.read(4):
            length = struct.unpack(">I", head)[0] & 0x7FFFFFFF
            reply = answer(self.rfile.read(length), self.server.volfile)
            self.wfile.write(struct.pack(">I", len(reply) | 0x80000000) + reply)


class VolfileServer(socketserver.ThreadingTCPServer):
    """Serves `volfile` at an address until closed."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address, volfile):
        super().__init__((address, PORT), Connection)
        self.volfile = volfile.encode()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()
