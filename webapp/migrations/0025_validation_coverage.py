from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0024_evaluation_metrics'),
    ]

    operations = [
        migrations.AddField(
            model_name='validation',
            name='coverage',
            field=models.JSONField(blank=True, null=True),
        ),
    ]
