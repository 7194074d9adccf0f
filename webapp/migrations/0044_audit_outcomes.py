from django.db import migrations, models

CONFIGURE = """
UPDATE webapp_run
SET config = jsonb_set(
    config, '{grading,counterfactual}',
    CASE WHEN kind = 'validate' THEN '"sample"' ELSE config #> '{grading,counterfactual,mode}' END
)
WHERE config #> '{grading,counterfactual,mode}' IS NOT NULL;
"""
"""Settings of audits were a section; its mode alone is left, which validations do not choose."""


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0043_reason_details'),
    ]

    operations = [
        migrations.RunSQL(CONFIGURE, migrations.RunSQL.noop),
        migrations.AlterField(
            model_name='trajectory',
            name='counterfactual',
            field=models.CharField(blank=True, choices=[('confirmed', 'confirmed'), ('caught', 'caught'), ('no_mutants', 'no_mutants'), ('unproven', 'unproven'), ('own_box', 'own_box'), ('not_sampled', 'not_sampled'), ('off', 'off')], default='', max_length=16),
        ),
    ]
