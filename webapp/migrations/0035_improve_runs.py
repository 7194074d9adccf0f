"""Runs of kind ``improve``."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0034_fill_evaluation_columns'),
    ]

    operations = [
        migrations.AlterField(
            model_name='run',
            name='kind',
            field=models.CharField(choices=[('rollout', 'rollout'), ('train', 'train'), ('improve', 'improve'), ('sft', 'sft'), ('verifier', 'verifier'), ('evaluate', 'evaluate'), ('curate', 'curate'), ('validate', 'validate'), ('import', 'import')], max_length=16),
        ),
    ]
