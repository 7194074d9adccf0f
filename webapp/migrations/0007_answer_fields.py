from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0006_sandboxes'),
    ]

    operations = [
        migrations.AddField(
            model_name='taskanswer',
            name='log_parser',
            field=models.CharField(blank=True, default='', max_length=300),
        ),
        migrations.AddField(
            model_name='taskanswer',
            name='expected',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='taskanswer',
            name='hidden_paths',
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.AddField(
            model_name='taskanswer',
            name='timeout_s',
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='taskanswer',
            name='setup_patch',
            field=models.TextField(blank=True, default=''),
        ),
    ]
