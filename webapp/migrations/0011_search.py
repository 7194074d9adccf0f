import django.contrib.postgres.indexes
import django.contrib.postgres.search
import django.db.models.deletion
import django.db.models.functions.text
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('webapp', '0010_scan_purposes'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RenameModel(old_name='PatternScanner', new_name='EnteredScanner'),
        migrations.AlterField(
            model_name='enteredscanner',
            name='pattern',
            field=models.CharField(blank=True, default='', max_length=500),
        ),
        migrations.AlterField(
            model_name='enteredscanner',
            name='place',
            field=models.CharField(blank=True, choices=[('thoughts', 'thoughts'), ('actions', 'actions'), ('observations', 'observations')], default='', max_length=16),
        ),
        migrations.AddField(
            model_name='enteredscanner',
            name='rubric',
            field=models.TextField(blank=True, default=''),
        ),
        migrations.AddField(
            model_name='enteredscanner',
            name='endpoint',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
        migrations.AddField(
            model_name='enteredscanner',
            name='model',
            field=models.CharField(blank=True, default='', max_length=200),
        ),
        migrations.CreateModel(
            name='Passage',
            fields=[
                ('pk', models.CompositePrimaryKey('trajectory_id', 'place', 'number', blank=True, editable=False, primary_key=True, serialize=False)),
                ('place', models.CharField(choices=[('thoughts', 'Thoughts'), ('actions', 'Actions'), ('observations', 'Observations'), ('patches', 'Patches')], max_length=12)),
                ('trajectory', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='passages', to='webapp.trajectory')),
                ('number', models.IntegerField()),
                ('first_step', models.IntegerField(null=True)),
                ('last_step', models.IntegerField(null=True)),
                ('words', django.contrib.postgres.search.SearchVectorField()),
            ],
            options={
                'ordering': ['trajectory_id', 'place', 'number'],
            },
        ),
        migrations.CreateModel(
            name='SavedSearch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80, unique=True)),
                ('filters', models.JSONField(default=dict)),
                ('author', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.RemoveIndex(
            model_name='step',
            name='step_search',
        ),
        migrations.RemoveIndex(
            model_name='task',
            name='task_statement',
        ),
        migrations.RemoveIndex(
            model_name='trajectory',
            name='trajectory_patch',
        ),
        migrations.RemoveField(
            model_name='step',
            name='search_text',
        ),
        migrations.AddField(
            model_name='scan',
            name='is_indexed',
            field=models.BooleanField(default=False),
        ),
        migrations.AddIndex(
            model_name='scan',
            index=models.Index(condition=models.Q(('is_indexed', False)), fields=['-trajectory'], name='scan_unindexed'),
        ),
        migrations.AddIndex(
            model_name='task',
            index=django.contrib.postgres.indexes.GinIndex(django.contrib.postgres.search.SearchVector(models.Func(django.db.models.functions.text.Left('problem_statement', 70000), models.Value('!"#$&\'()*+,-./:;<=>?@[\\]^_`{|}~'), models.Value('                               '), function='translate', output_field=models.TextField()), config='simple'), name='task_statement'),
        ),
        migrations.AddIndex(
            model_name='passage',
            index=django.contrib.postgres.indexes.GinIndex(fields=['words'], name='passage_words'),
        ),
        migrations.CreateModel(
            name='Judgement',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.IntegerField()),
                ('most', models.IntegerField()),
                ('before', models.BigIntegerField()),
                ('asked', models.IntegerField(default=0)),
                ('answered', models.IntegerField(default=0)),
                ('found', models.IntegerField(default=0)),
                ('prompt_tokens', models.BigIntegerField(default=0)),
                ('generated_tokens', models.BigIntegerField(default=0)),
                ('problem', models.TextField(blank=True, default='')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='webapp.run')),
                ('scanner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='judgements', to='webapp.enteredscanner')),
                ('started_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [models.Index(condition=models.Q(('finished_at', None)), fields=['id'], name='judgement_unfinished')],
            },
        ),
    ]
