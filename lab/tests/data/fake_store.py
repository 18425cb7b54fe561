# SPDX-License-Identifier: GPL-2.0-only
"""As much of Redis and memcached as workloads/redis/store.c asks of them; FAULT is one of:

byte: one byte of a value is another; lost: a value is gone; undead: a delete does
nothing; refuses: a value is not stored; unsaved: BGSAVE fails.
"""

import os
import signal
import socket
import sys
import time

FAULT = os.environ.get("FAULT", "")
REDIS = "redis" in sys.argv[0]
values = {}
seen = 0


def store(key, value):
    global seen
    seen += 1
    if FAULT == "refuses" and seen == 50:
        return b"-OOM\r\n" if REDIS else b"SERVER_ERROR out of memory\r\n"
    values[key] = value
    return b"+OK\r\n" if REDIS else b"STORED\r\n"


def get(key):
    global seen
    seen += 1
    value = values.get(key)
    if value is None or FAULT == "lost" and seen == 150:
        return b"$-1\r\n" if REDIS else b"END\r\n"
    if FAULT == "byte" and seen == 150:
        value = value[:-1] + bytes([value[-1] ^ 1])
    if REDIS:
        return b"$%d\r\n%s\r\n" % (len(value), value)
    return b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value)


def delete(key):
    there = key in values
    if FAULT != "undead":
        values.pop(key, None)
    if REDIS:
        return b":%d\r\n" % there
    return b"DELETED\r\n" if there else b"NOT_FOUND\r\n"


def info(_):
    state = b"err" if FAULT == "unsaved" else b"ok"
    text = b"rdb_bgsave_in_progress:0\r\nrdb_last_bgsave_status:%s\r\n" % state
    return b"$%d\r\n%s\r\n" % (len(text), text)


def redis_request(stream, line):
    words = []
    for _ in range(int(line[1:])):
        length = int(stream.readline()[1:])
        words.append(stream.read(length + 2)[:-2])
    known = {b"SET": store, b"GET": get, b"DEL": delete, b"INFO": info}
    known[b"BGSAVE"] = lambda: b"+Background saving started\r\n"
    return known[words[0]](*words[1:])


def memcached_request(stream, line):
    words = line.split()
    if words[0] == b"set":
        return store(words[1], stream.read(int(words[4]) + 2)[:-2])
    return {b"get": get, b"delete": delete}[words[0]](words[1])


signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[sys.argv.index("--unixsocket" if REDIS else "-s") + 1])
listener.listen()
connection, _ = listener.accept()
with connection.makefile("rb") as stream:
    while line := stream.readline().strip():
        connection.sendall((redis_request if REDIS else memcached_request)(stream, line))
# Not pause(): a signal just before it is handled when it returns, and so never.
while True:
    time.sleep(0.1)
