"""An HTTP service that counts: ``collector.py PORT [PAUSE]`` answers each POST after PAUSE seconds; GET answers with the counts."""
import asyncio
import json
import sys

counts = {"requests": 0, "bytes": 0, "lines": 0}
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0


async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.startswith(b"get"):
                body = json.dumps(counts).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                continue
            size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            left = size
            while left:
                data = await reader.read(min(left, 1 << 20))
                if not data:
                    return
                left -= len(data)
                counts["lines"] += data.count(b"\n")
            counts["requests"] += 1
            counts["bytes"] += size
            if pause:
                await asyncio.sleep(pause)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=1 << 22)
    await server.serve_forever()


asyncio.run(main())
