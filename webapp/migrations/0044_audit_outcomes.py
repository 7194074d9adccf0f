from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0043_reason_details'),
    ]

    operations = [
        migrations.AlterField(
            model_name='trajectory',
            name='counterfactual',
            field=models.CharField(blank=True, choices=[('confirmed', 'confirmed'), ('caught', 'caught'), ('no_mutants', 'no_mutants'), ('unproven', 'unproven'), ('own_box', 'own_box'), ('not_sampled', 'not_sampled'), ('off', 'off')], default='', max_length=16),
        ),
    ]
