#!/usr/bin/python3
"""The pods and the client of the demo. Nothing but the standard library's smallest part.

talk.py serve NAME=tcp:ADDRESS:PORT ...   answer at each address, over tcp or udp, with that pod's name
talk.py ask tcp|udp ADDRESS PORT COUNT    ask so many times, each over a connection of its own; print who answered
talk.py hold ADDRESS PORT NAME FILE       keep one connection to the pod NAME; while FILE exists, ask over it again and
                                          again and write to FILE.answers how often NAME has answered; then close it
talk.py count FILE ADDRESS:PORT ...       while FILE exists, connect to each place in turn, a hundred times a second at most; FILE.made has the number of
                                          connections, FILE.failed what failed, FILE.slowest the milliseconds of the slowest. Exit code 1: some failed
"""

import os
import selectors
import socket
import struct
import sys
import time

QUESTION = b"GET / HTTP/1.0\r\n\r\n"
PATIENCE = 5


def serve(pods):
    watched = selectors.DefaultSelector()
    for pod in pods:
        name, _, place = pod.partition("=")
        protocol, address, port = place.split(":")
        kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
        server = socket.socket(socket.AF_INET, kind)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, int(port)))
        if protocol == "tcp":
            server.listen(64)
        watched.register(server, selectors.EVENT_READ, (protocol, name.encode() + b"\n"))
    print("ready", flush=True)
    while True:
        for key, _ in watched.select():
            kind, answer = key.data
            try:
                if kind == "tcp":
                    connection, _ = key.fileobj.accept()
                    watched.register(connection, selectors.EVENT_READ, ("connection", answer))
                elif kind == "udp":
                    _, client = key.fileobj.recvfrom(2048)
                    key.fileobj.sendto(answer, client)
                elif key.fileobj.recv(2048):
                    key.fileobj.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
                else:
                    raise ConnectionError
            except OSError:
                # A client that is done, in whatever way. The listening sockets stay.
                if kind == "connection":
                    watched.unregister(key.fileobj)
                    key.fileobj.close()


def connect(address, port):
    connection = socket.create_connection((address, port), timeout=PATIENCE)
    # Closed with a reset: IPVS forgets such a connection after 10 s, and one that says goodbye only after 2 minutes.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return connection


def question(connection):
    """The name of the pod at the other end."""
    connection.sendall(QUESTION)
    said = b""
    while not (b"\r\n\r\n" in said and said.endswith(b"\n") and said.split(b"\r\n\r\n", 1)[1]):
        piece = connection.recv(2048)
        if not piece:
            raise ConnectionError("closed in the middle of an answer")
        said += piece
    return said.split(b"\r\n\r\n", 1)[1].decode().strip()


def ask_once(protocol, address, port):
    try:
        if protocol == "tcp":
            with connect(address, port) as connection:
                return question(connection)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(PATIENCE)
            client.connect((address, port))
            client.send(b"who are you?")
            return client.recv(2048).decode().strip()
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return "nobody (%s)" % (error.strerror or error)


def ask(protocol, address, port, count):
    answers = {}
    for _ in range(count):
        name = ask_once(protocol, address, port)
        answers[name] = answers.get(name, 0) + 1
    for name in sorted(answers):
        print(name, answers[name])


def hold(address, port, name, file):
    for _ in range(20):
        connection = connect(address, port)
        if question(connection) == name:
            break
        connection.close()
    else:
        sys.exit("no connection to " + name)
    answered = 0
    while os.path.exists(file):
        if question(connection) != name:
            sys.exit("another pod answers over a connection to " + name)
        answered += 1
        with open(file + ".new", "w") as answers:
            print(answered, file=answers)
        os.rename(file + ".new", file + ".answers")
        time.sleep(0.1)
    connection.close()


def keep_asking(file, places):
    made, slowest, failed = 0, 0, False
    places = [place.rsplit(":", 1) for place in places]
    while os.path.exists(file):
        address, port = places[made % len(places)]
        begun = time.monotonic()
        answer = ask_once("tcp", address, int(port))
        slowest = max(slowest, (time.monotonic() - begun) * 1000)
        made += 1
        if not answer.startswith("web"):
            failed = True
            with open(file + ".failed", "a") as failures:
                print("connection %d, to %s port %s: %s" % (made, address, port, answer), file=failures)
        for name, number in ("made", made), ("slowest", round(slowest, 1)):
            with open(file + ".new", "w") as counted:
                print(number, file=counted)
            os.rename(file + ".new", "%s.%s" % (file, name))
        time.sleep(0.01)
    sys.exit(failed)


def main(arguments):
    try:
        if arguments[0] == "serve":
            serve(arguments[1:])
        elif arguments[0] == "ask":
            protocol, address, port, count = arguments[1:]
            ask(protocol, address, int(port), int(count))
        elif arguments[0] == "hold":
            address, port, name, file = arguments[1:]
            hold(address, int(port), name, file)
        elif arguments[0] == "count":
            keep_asking(arguments[1], arguments[2:])
        else:
            sys.exit(__doc__)
    except (IndexError, ValueError) as error:
        sys.exit("talk.py: %s\n%s" % (error, __doc__))
    except OSError as error:
        sys.exit("talk.py: %s" % error)


main(sys.argv[1:])
