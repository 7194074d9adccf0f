from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0013_sign_ins'),
    ]

    operations = [
        migrations.AddField(
            model_name='tokenblob',
            name='data',
            field=models.BinaryField(null=True),
        ),
        migrations.RunSQL(
            'ALTER TABLE webapp_tokenblob ALTER COLUMN data SET STORAGE EXTERNAL',
            migrations.RunSQL.noop,
        ),
        *(
            migrations.AlterField(model_name='tokenblob', name=name, field=models.BinaryField(null=True))
            for name in ('ids', 'mask', 'logprobs', 'versions', 'steps')
        ),
    ]
