"""Ingest tokens belong to attempts; the engines that run during the migration keep theirs."""

from django.db import migrations, models

KEEP = """
UPDATE webapp_runattempt a SET token_hash = r.token_hash
FROM webapp_run r WHERE r.id = a.run_id AND r.epoch = a.epoch
"""
KEEP_BACKWARDS = """
UPDATE webapp_run r SET token_hash = a.token_hash
FROM webapp_runattempt a WHERE r.id = a.run_id AND r.epoch = a.epoch
"""


class Migration(migrations.Migration):
    dependencies = [("webapp", "0010_health_indexes")]

    operations = [
        migrations.AddField(
            model_name="runattempt",
            name="token_hash",
            field=models.CharField(blank=True, default="", max_length=64),
        ),
        migrations.RunSQL(KEEP, KEEP_BACKWARDS),
        migrations.RemoveField(model_name="run", name="token_hash"),
    ]
