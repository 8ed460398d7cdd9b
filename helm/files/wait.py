# wait.py HOST PORT SECONDS: until the leader's launcher listens, which it does before it starts vLLM.
import socket
import sys
import time

host, port, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
deadline = time.monotonic() + patience
while True:
    try:
        socket.create_connection((host, port), timeout=5).close()
        sys.exit(0)
    except OSError as error:
        if time.monotonic() > deadline:
            sys.exit(f"the leader did not listen on {host}:{port} within {patience:.0f} s: {error}")
        print(f"waiting for the leader on {host}:{port}: {error}", flush=True)
        time.sleep(3)
