from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0026_validation_coverage'),
    ]

    operations = [
        migrations.AddField(
            model_name='taskanswer',
            name='binary_files',
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
