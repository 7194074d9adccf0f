from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0041_trajectory_opening'),
    ]

    operations = [
        migrations.AddField(
            model_name='trajectory',
            name='replay',
            field=models.JSONField(blank=True, null=True),
        ),
    ]
