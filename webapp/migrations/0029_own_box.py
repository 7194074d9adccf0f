from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0028_endpoint_attachable'),
    ]

    operations = [
        migrations.AddField(
            model_name='taskanswer',
            name='own_box',
            field=models.BooleanField(default=False),
        ),
        migrations.AlterField(
            model_name='trajectory',
            name='counterfactual',
            field=models.CharField(blank=True, choices=[('confirmed', 'confirmed'), ('caught', 'caught'), ('flaky', 'flaky'), ('no_mutants', 'no_mutants'), ('unproven', 'unproven'), ('own_box', 'own_box'), ('not_sampled', 'not_sampled'), ('off', 'off')], default='', max_length=16),
        ),
    ]
