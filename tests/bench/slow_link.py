#!/usr/bin/env python3
"""Runs a command as two ranks on two "machines": network namespaces, with names of their own, joined by a link that is slow.

    tests/bench/slow_link.py --delay 1 --rate 1000 build/release/faststream-run -m model.bin --device cpu -t 1 -p "Once" --stats

Needs root, iproute2, /dev/net/tun and Open MPI; no netem. A process here carries the packets: it keeps each for the
delay, lets no more through than the rate, loses some, and all of them once the cable is cut. First it says what a small
message takes one way, which is more than the delay where processors are busy.
"""
import argparse
import collections
import fcntl
import multiprocessing
import os
import random
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

SPACES = {"fast-a": "10.9.0.1", "fast-b": "10.9.0.2"}
QUEUE_SECONDS = 0.2  # beyond which a link at its rate loses packets

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--delay", type=float, default=1, help="milliseconds, each way")
parser.add_argument("--rate", type=float, default=0, help="Mbit/s, each way; 0: no bound")
parser.add_argument("--loss", type=float, default=0, help="per cent of packets")
parser.add_argument("--cut", type=float, default=0, help="cut the cable after so many seconds; 0: never")
parser.add_argument("command", nargs=argparse.REMAINDER)
args = parser.parse_args()


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def make_end(space, address):
    TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", space.encode(), IFF_TUN | IFF_NO_PI))
    ip("netns", "add", space)
    ip("link", "set", space, "netns", space)
    ip("-n", space, "addr", "add", address + "/24", "dev", space)
    ip("-n", space, "link", "set", space, "up", "mtu", "9000", "txqueuelen", "20000")
    ip("-n", space, "link", "set", "lo", "up")
    return end


def carry(ends, cut_at):
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting = {end: collections.deque() for end in ends}  # (when it arrives, packet)
    free_at = dict.fromkeys(ends, 0.0)
    while True:
        next_at = min((queue[0][0] for queue in waiting.values() if queue), default=time.monotonic() + 1)
        readable = select.select(ends, [], [], max(0, next_at - time.monotonic()))[0]
        now = time.monotonic()
        for end in readable:
            for _ in range(64):
                try:
                    packet = os.read(end, 1 << 16)
                except BlockingIOError:
                    break
                is_cut = cut_at.value > 0 and now > cut_at.value
                if is_cut or random.random() < args.loss / 100 or free_at[end] > now + QUEUE_SECONDS:
                    continue
                free_at[end] = max(now, free_at[end])
                if args.rate > 0:
                    free_at[end] += len(packet) * 8 / (args.rate * 1e6)
                waiting[end].append((free_at[end] + args.delay / 1000, packet))
        for end, queue in waiting.items():
            while queue and queue[0][0] <= time.monotonic():
                os.write(other[end], queue.popleft()[1])


PING = """
import socket, statistics, sys, time
address = (sys.argv[2], 7777)
if sys.argv[1] == "answer":
    line = socket.create_server(address).accept()[0]
else:
    line = socket.create_connection(address)
line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if sys.argv[1] == "answer":
    while data := line.recv(4096):
        line.sendall(data)
else:
    times = []
    for _ in range(30):
        begin = time.monotonic()
        line.sendall(b"x" * 1024)
        line.recv(1024, socket.MSG_WAITALL)
        times.append((time.monotonic() - begin) / 2)
    print("a message of 1 KB takes %.2f ms one way (median)" % (1e3 * statistics.median(times)), file=sys.stderr)
"""


def measure():
    space_a, space_b = SPACES
    ping = [sys.executable, "-c", PING]
    answers = subprocess.Popen(["ip", "netns", "exec", space_b, *ping, "answer", SPACES[space_b]])
    time.sleep(0.5)
    subprocess.run(["ip", "netns", "exec", space_a, *ping, "ask", SPACES[space_b]], check=True)
    answers.wait()


def run_ranks():
    space_a, space_b = SPACES
    with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as agent:
        agent.write("#!/bin/bash\nshift\n"
                    f'exec ip netns exec {space_b} unshare -u bash -c "hostname {space_b}; $*"\n')
    os.chmod(agent.name, 0o755)
    network = "10.9.0.0/24"
    keepalive = {"oob_tcp_keepalive_time": 5, "oob_tcp_keepalive_intvl": 2, "oob_tcp_keepalive_probes": 3}
    settings = {"plm_rsh_agent": agent.name, "btl": "tcp,self", "btl_tcp_if_include": network,
                "oob_tcp_if_include": network, **keepalive}
    words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "2",
             "--host", ",".join(f"{address}:1" for address in SPACES.values())]
    for name, value in settings.items():
        words += ["--mca", name, str(value)]
    script = f'hostname {space_a}; exec "$@"'
    try:
        return subprocess.run(["ip", "netns", "exec", space_a, "unshare", "-u", "bash", "-c", script, "x",
                               *words, *args.command]).returncode
    finally:
        os.unlink(agent.name)


ends = [make_end(space, address) for space, address in SPACES.items()]
cut_at = multiprocessing.Value("d", 0)
carrier = multiprocessing.Process(target=carry, args=(ends, cut_at), daemon=True)
carrier.start()
try:
    measure()
    if args.cut > 0:
        cut_at.value = time.monotonic() + args.cut
    sys.exit(run_ranks())
finally:
    carrier.terminate()
    for space in SPACES:
        ip("netns", "del", space)
