from django.db import migrations

KEEP = """
INSERT INTO webapp_proof (task_id, uid, content, time, coverage, problem)
SELECT task_id, uid, content, time, coverage, '' FROM webapp_validation WHERE coverage IS NOT NULL
"""
NEWEST = """
UPDATE webapp_task t SET proof_id = (
    SELECT p.id FROM webapp_proof p
    WHERE p.task_id = t.id AND (t.content = '' OR p.content = t.content)
    ORDER BY p.time DESC, p.id DESC LIMIT 1
) WHERE EXISTS (SELECT 1 FROM webapp_proof p WHERE p.task_id = t.id)
"""


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0030_proofs'),
    ]

    operations = [
        migrations.RunSQL([KEEP, NEWEST], migrations.RunSQL.noop),
    ]
