"""Fill the longest contexts and hash patches by their effect, in batches: an interrupted migration continues."""

from django.db import migrations, transaction

from engine.patches.sections import submission_hash

BATCH = 500
OLD_HASH = 16
"""Length of the hashes of earlier versions."""


def fill(apps, schema_editor):
    """Fill both columns from steps and patches."""
    Trajectory = apps.get_model('webapp', 'Trajectory')
    last = 0
    while pks := list(Trajectory.objects.filter(pk__gt=last).order_by('pk').values_list('pk', flat=True)[:BATCH]):
        with transaction.atomic(), schema_editor.connection.cursor() as cursor:
            cursor.execute(
                'UPDATE webapp_trajectory t SET context_tokens = s.longest FROM (SELECT trajectory_id,'
                ' max(prompt_tokens + generated_tokens) AS longest FROM webapp_step'
                ' WHERE trajectory_id = ANY(%s) GROUP BY trajectory_id) s'
                ' WHERE t.id = s.trajectory_id AND t.context_tokens < s.longest',
                [pks],
            )
            hashed = Trajectory.objects.filter(pk__in=pks).only('pk', 'patch', 'patch_hash')
            changed = [row for row in hashed if len(row.patch_hash) == OLD_HASH]
            for row in changed:
                row.patch_hash = submission_hash(row.patch)
            Trajectory.objects.bulk_update(changed, ['patch_hash'])
        last = pks[-1]


def shorten(apps, schema_editor):
    """Cut hashes to the length that the column of earlier versions has; filling computes them anew."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute('UPDATE webapp_trajectory SET patch_hash = left(patch_hash, %s)', [OLD_HASH])


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ('webapp', '0033_evaluation_columns'),
    ]

    operations = [
        migrations.RunPython(fill, shorten),
    ]
