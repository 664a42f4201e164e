# Runs one test of Mosquitto against another broker: python3 compare.py <test.py> <ports>.
#
# Mosquitto's tests compare what arrives byte by byte with what Mosquitto sends. MQTT leaves
# parts of it to the broker, which do not count here:
# - in CONNACK the limits that the broker has;
# - in an answer the reason in words, and 0x10 for a message that nobody subscribes to;
# - the order of the properties of PUBLISH, but for that of user properties;
# - which of 0x81 and 0x82 ends a connection;
# - whether the reason is sent before a connection is closed because of an error.

import os
import runpy
import subprocess
import sys

here = os.path.abspath(__file__)
test = os.path.abspath(sys.argv[1])
sys.argv = [test] + sys.argv[2:]
sys.path.insert(0, os.path.dirname(test))
sys.path.insert(0, os.path.dirname(os.path.dirname(test)))

import mosq_test


def our_broker(start):
    """the start of a process, of this broker where the test starts Mosquitto"""

    def started(command, *args, **more):
        if command[0].endswith(".py"):  # a client that a test starts
            command = [sys.executable, here] + command
        if os.path.basename(command[0]) == "mosquitto":
            command = [os.environ["COLONY_SUITE_BROKER"]] + command[1:]
        return start(command, *args, **more)

    return started


subprocess.Popen = our_broker(subprocess.Popen)

CONNACK, PUBLISH, DISCONNECT = 0x20, 0x30, 0xE0
ANSWERS = (0x40, 0x50, 0x60, 0x70, 0x90, 0xB0, DISCONNECT)
REASON_STRING = 0x1F
# What a broker may say of itself in CONNACK: session expiry, Receive Maximum, Maximum QoS,
# Retain Available, Maximum Packet Size, Topic Alias Maximum, the availability of three kinds
# of subscriptions, a reason.
OF_THE_BROKER = {0x11, 0x21, 0x24, 0x25, 0x27, 0x22, 0x28, 0x29, 0x2A, REASON_STRING}
SIZES = {0x01: 1, 0x02: 4, 0x23: 2, 0x11: 4, 0x21: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x22: 2, 0x28: 1, 0x29: 1, 0x2A: 1, 0x13: 2}
USER_PROPERTY, SUBSCRIPTION_IDENTIFIER = 0x26, 0x0B


def integer(data, at):
    value, shift = 0, 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] & 0x80 == 0:
            return value, at
        shift += 7


def whole(data):
    """the first packet in data, and what is behind it; None if it is not all there"""
    try:
        length, at = integer(data, 1)
    except IndexError:
        return None, data
    if len(data) < at + length:
        return None, data
    return data[: at + length], data[at + length :]


def properties(data):
    """a list of properties as bytes, and what is behind them"""
    length, at = integer(data, 0)
    end = at + length
    found = []
    while at < end:
        start, kind = at, data[at]
        at += 1
        if kind in SIZES:
            at += SIZES[kind]
        elif kind == SUBSCRIPTION_IDENTIFIER:
            _, at = integer(data, at)
        else:
            for _ in range(2 if kind == USER_PROPERTY else 1):
                at += 2 + int.from_bytes(data[at : at + 2], "big")
        found.append(data[start:at])
    return found, data[end:]


def plain(packet):
    """a packet without what the broker decides, in a form that can be compared"""
    kind = packet[0] & 0xF0
    _, at = integer(packet, 1)
    body = packet[at:]
    if kind == CONNACK and len(body) > 2:
        found, _ = properties(body[2:])
        return packet[0], body[:2], sorted(p for p in found if p[0] not in OF_THE_BROKER)
    if kind in ANSWERS:
        first = 0 if kind == DISCONNECT else 2
        if kind in (0x90, 0xB0):  # properties stand before the reason codes
            # MQTT 3.1.1 has none; its SUBACK of one code has 3 bytes, a minimal one of MQTT 5 4
            if kind == 0x90 and len(body) > 3 and body[2] < len(body) - 2 and looks_like_v5(body):
                found, rest = properties(body[2:])
                return packet[0], body[:2], [p for p in found if p[0] != REASON_STRING], rest
            return packet[0], body
        identifier, rest = body[:first], body[first:]
        code = rest[0] if rest else 0
        if code == 0x10 and kind in (0x40, 0x50):
            code = 0
        if code == 0x82 and kind == DISCONNECT:
            code = 0x81
        found = properties(rest[1:])[0] if len(rest) > 1 else []
        return packet[0], identifier, code, [p for p in found if p[0] != REASON_STRING]
    if kind == PUBLISH:
        at = 2 + int.from_bytes(body[:2], "big")
        if packet[0] & 0x06:
            at += 2
        try:
            found, payload = properties(body[at:])
        except IndexError:
            return packet[0], body
        users = [p for p in found if p[0] == USER_PROPERTY]
        return packet[0], body[:at], users, sorted(p for p in found if p[0] != USER_PROPERTY), payload
    return packet[0], body


def looks_like_v5(body):
    try:
        found, rest = properties(body[2:])
    except IndexError:
        return False
    return len(rest) > 0 and all(p[0] in (REASON_STRING, USER_PROPERTY) for p in found)


def receive(sock):
    """one packet; what arrived of it if the connection ends before"""
    data = b""
    while True:
        packet, _ = whole(data)
        if packet is not None:
            return packet
        more = sock.recv(1)
        if more == b"":
            return data
        data += more


def equal(got, want):
    if got == want:
        return True
    return len(got) > 1 and whole(got)[0] is not None and plain(got) == plain(want)


def refusal(packet):
    """whether a packet only says why the connection is closed"""
    _, at = integer(packet, 1)
    body = packet[at:]
    if packet[0] == CONNACK:
        return body[1] != 0
    return packet[0] == DISCONNECT and len(body) > 0 and body[0] >= 0x80


def expect_packet(sock, name, expected):
    if len(expected) == 0:  # the end of the connection
        got = receive(sock)
        if got != b"" and refusal(got):
            got = receive(sock)
        if got != b"":
            mosq_test.packet_matches(name, got, expected)
            raise mosq_test.TestError
        return True
    while expected:
        want, expected = whole(expected)
        if want is None:
            return original(sock, name, expected)
        got = receive(sock)
        if not equal(got, want):
            mosq_test.packet_matches(name, got, want)
            raise mosq_test.TestError
    return True


def receive_unordered(sock, one, two, name):
    got = [receive(sock), receive(sock)]
    if equal(got[0], one) and equal(got[1], two) or equal(got[0], two) and equal(got[1], one):
        return
    raise ValueError("%s: %s" % (name, got))


mosq_test.receive_unordered = receive_unordered
original = mosq_test.expect_packet
mosq_test.expect_packet = expect_packet
runpy.run_path(test, run_name="__main__")
