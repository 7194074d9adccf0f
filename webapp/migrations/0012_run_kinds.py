"""Validations and imports are kinds of their own: until now they were of kind ``curate``."""

from django.db import migrations, models

_TELL_APART = """
UPDATE webapp_run SET kind = 'validate', config = jsonb_set(config, '{kind}', '"validate"')
WHERE kind = 'curate' AND config ? 'validation';
UPDATE webapp_run SET kind = 'import', config = jsonb_set(config, '{kind}', '"import"')
WHERE kind = 'curate' AND config ? 'importing';
"""
_PUT_TOGETHER = """
UPDATE webapp_run SET kind = 'curate', config = jsonb_set(config, '{kind}', '"curate"')
WHERE kind IN ('validate', 'import');
"""


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0011_attempt_tokens'),
    ]

    operations = [
        migrations.AlterField(
            model_name='run',
            name='kind',
            field=models.CharField(choices=[('rollout', 'rollout'), ('train', 'train'), ('sft', 'sft'), ('verifier', 'verifier'), ('evaluate', 'evaluate'), ('curate', 'curate'), ('validate', 'validate'), ('import', 'import')], max_length=16),
        ),
        migrations.RunSQL(_TELL_APART, _PUT_TOGETHER),
    ]
