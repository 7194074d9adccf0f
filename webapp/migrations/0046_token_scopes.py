from django.db import migrations, models

EXPIRE = "UPDATE webapp_apitoken SET expires_at = now() + interval '90 days' WHERE expires_at IS NULL"
"""Every token expires; those that did not are good for 90 more days, with the rights of their person as before."""


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0045_runattempt_out_of_memory'),
    ]

    operations = [
        migrations.AddField(
            model_name='apitoken',
            name='scope',
            field=models.CharField(default='admin', max_length=16),
            preserve_default=False,
        ),
        migrations.RunSQL(EXPIRE, migrations.RunSQL.noop),
        migrations.AlterField(
            model_name='apitoken',
            name='expires_at',
            field=models.DateTimeField(),
        ),
    ]
