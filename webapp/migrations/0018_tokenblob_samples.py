from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds the number of samples; stored trajectories of earlier versions have one each."""

    dependencies = [
        ('webapp', '0017_trajectory_prompt'),
    ]

    operations = [
        migrations.AddField(
            model_name='tokenblob',
            name='samples',
            field=models.IntegerField(default=1),
        ),
    ]
