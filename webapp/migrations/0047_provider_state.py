from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0046_token_scopes'),
    ]

    operations = [
        migrations.AddField(
            model_name='step',
            name='provider_state',
            field=models.JSONField(blank=True, null=True),
        ),
    ]
