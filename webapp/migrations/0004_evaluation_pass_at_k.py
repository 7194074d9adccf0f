from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0003_alert_tasks'),
    ]

    operations = [
        migrations.AddField(
            model_name='evaluation',
            name='pass_at_k',
            field=models.JSONField(blank=True, default=list),
        ),
    ]
