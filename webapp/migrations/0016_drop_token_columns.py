from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0015_convert_tokens'),
    ]

    operations = [
        migrations.AlterField(
            model_name='tokenblob',
            name='data',
            field=models.BinaryField(),
        ),
        *(
            migrations.RemoveField(model_name='tokenblob', name=name)
            for name in ('ids', 'mask', 'logprobs', 'versions', 'steps')
        ),
    ]
