from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0025_trajectory_counterfactual'),
    ]

    operations = [
        migrations.AddField(
            model_name='validation',
            name='coverage',
            field=models.JSONField(blank=True, null=True),
        ),
    ]
