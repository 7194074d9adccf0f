from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0027_binary_files'),
    ]

    operations = [
        migrations.AddField(
            model_name='endpoint',
            name='attachable',
            field=models.BooleanField(default=False),
        ),
    ]
