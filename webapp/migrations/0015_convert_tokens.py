"""Compress the token columns of stored trajectories, in batches: an interrupted migration continues."""

import numpy as np
from django.db import migrations, transaction

from engine.events.token_block import decode, encode
from engine.tokens import TokenRecord

BATCH = 64
COLUMNS = {'ids': '<i4', 'mask': 'u1', 'logprobs': '<f4', 'versions': '<i4', 'steps': '<i4'}


def compress(apps, schema_editor):
    """Fill ``data`` from the columns of earlier versions."""
    def convert(blob):
        columns = {name: np.frombuffer(bytes(getattr(blob, name)), dtype) for name, dtype in COLUMNS.items()}
        blob.data = encode(TokenRecord(**columns | {'mask': columns['mask'] != 0}))

    _in_batches(apps, convert, ['data'], data__isnull=True)


def expand(apps, schema_editor):
    """Fill the columns of earlier versions from ``data``."""
    def convert(blob):
        record = decode(bytes(blob.data))
        for name, dtype in COLUMNS.items():
            setattr(blob, name, getattr(record, name).astype(dtype).tobytes())
        blob.data = None

    _in_batches(apps, convert, ['data', *COLUMNS], data__isnull=False)


def _in_batches(apps, convert, fields, **left):
    TokenBlob = apps.get_model('webapp', 'TokenBlob')
    while True:
        with transaction.atomic():
            blobs = list(TokenBlob.objects.select_for_update().filter(**left).order_by('pk')[:BATCH])
            for blob in blobs:
                convert(blob)
            TokenBlob.objects.bulk_update(blobs, fields)
        if not blobs:
            return


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('webapp', '0014_token_block'),
    ]

    operations = [
        migrations.RunPython(compress, expand),
    ]
