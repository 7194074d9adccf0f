import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0005_scanners'),
    ]

    operations = [
        migrations.CreateModel(
            name='TokenTrace',
            fields=[
                ('trajectory', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='token_trace', serialize=False, to='webapp.trajectory')),
                ('iteration', models.IntegerField()),
                ('step', models.IntegerField()),
                ('losses', models.JSONField()),
                ('weight', models.FloatField()),
                ('length', models.IntegerField()),
                ('data', models.BinaryField()),
            ],
        ),
        migrations.RunSQL(
            'ALTER TABLE webapp_tokentrace ALTER COLUMN data SET STORAGE EXTERNAL', migrations.RunSQL.noop
        ),
    ]
