from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0044_audit_outcomes'),
    ]

    operations = [
        migrations.AddField(
            model_name='step',
            name='provider_state',
            field=models.JSONField(blank=True, null=True),
        ),
    ]
