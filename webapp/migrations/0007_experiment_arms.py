from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0006_token_trace'),
    ]

    operations = [
        migrations.RenameField(model_name='experiment', old_name='description', new_name='goal'),
        migrations.AlterField(
            model_name='experiment',
            name='goal',
            field=models.TextField(blank=True, default='', max_length=20000),
        ),
        migrations.AddField(
            model_name='experiment',
            name='hypothesis',
            field=models.TextField(blank=True, default='', max_length=20000),
        ),
        migrations.AddField(
            model_name='experiment',
            name='conclusion',
            field=models.TextField(blank=True, default='', max_length=20000),
        ),
        migrations.AddField(
            model_name='experiment',
            name='design',
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name='run',
            name='arm',
            field=models.CharField(blank=True, default='', max_length=60),
        ),
    ]
