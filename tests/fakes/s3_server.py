"""A real S3 server of this process (moto's)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

SECRET = "a-secret-of-the-test"


@contextmanager
def s3_bucket() -> Iterator[str]:
    """Yield the address of a folder in an empty bucket; the server's credentials are in the environment."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        httpx.post(
            f"{address}/moto-api/reset", timeout=300
        ).raise_for_status()  # the process keeps its buckets
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", address)
            patch.setenv("AWS_ACCESS_KEY_ID", "a-key-of-the-test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            s3fs.S3FileSystem.clear_instance_cache()  # instances know the address of an earlier server
            s3fs.S3FileSystem().mkdir("yard")
            yield "s3://yard/runs"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()
