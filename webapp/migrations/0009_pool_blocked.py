"""Why sandboxes do not come up yet."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """One more column of the pools' snapshots."""

    dependencies = [("webapp", "0008_findings")]
    operations = [
        migrations.AddField(model_name="pool", name="blocked", field=models.JSONField(default=dict)),
    ]
