from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("webapp", "0039_run_edits"),
    ]

    operations = [
        migrations.AddField(
            model_name="iteration",
            name="timeline",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="trajectory",
            name="trained_iteration",
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="trajectory",
            name="trained_version",
            field=models.IntegerField(blank=True, null=True),
        ),
    ]
