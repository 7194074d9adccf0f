import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.functions.text
from django.db import migrations, models

COUNT = """
    UPDATE webapp_group g
    SET num_finished = s.finished, num_graded = s.graded, num_cut_short = s.cut_short
    FROM (
        SELECT group_id, count(*) FILTER (WHERE state = 'finished' AND termination <> 'cancelled') AS finished,
            count(reward) FILTER (WHERE verdict <> '') AS graded,
            count(reward) FILTER (WHERE termination IN ('env_timeout', 'rollout_timeout')
                AND verdict NOT IN ('', 'passed')) AS cut_short
        FROM webapp_trajectory GROUP BY group_id
    ) s
    WHERE g.id = s.group_id
"""


class Migration(migrations.Migration):
    dependencies = [
        ("webapp", "0047_provider_state"),
    ]

    operations = [
        migrations.AddField(
            model_name="group",
            name="num_cut_short",
            field=models.IntegerField(default=0),
        ),
        migrations.AddField(
            model_name="run",
            name="progress_follows",
            field=models.CharField(blank=True, default="", max_length=500),
        ),
        migrations.AddField(
            model_name="run",
            name="progress_seconds_left",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.RemoveIndex(
            model_name="group",
            name="group_solved",
        ),
        migrations.AddIndex(
            model_name="group",
            index=models.Index(
                fields=["task"],
                include=["run", "num_graded", "num_solved", "num_cut_short"],
                name="group_solved",
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django.contrib.postgres.indexes.GinIndex(
                django.contrib.postgres.search.SearchVector(
                    django.db.models.functions.text.Left("problem_statement", 50000), config="simple"
                ),
                name="task_statement",
            ),
        ),
        migrations.AddIndex(
            model_name="trajectory",
            index=django.contrib.postgres.indexes.GinIndex(
                django.contrib.postgres.search.SearchVector(
                    django.db.models.functions.text.Left("patch", 50000), config="simple"
                ),
                condition=models.Q(("patch", ""), _negated=True),
                name="trajectory_patch",
            ),
        ),
        migrations.RunSQL(COUNT, migrations.RunSQL.noop),
    ]
