from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("webapp", "0044_audit_outcomes")]

    operations = [
        migrations.AddField(
            model_name="runattempt", name="out_of_memory", field=models.BooleanField(default=False)
        ),
    ]
