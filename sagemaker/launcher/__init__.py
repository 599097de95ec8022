"""What `sagemaker/launch.py` is made of; the modules import downwards only.

commands      options in, what was done out
notebook jobs what is done, as a sequence of calls
role lifecycle source   what a notebook or a job needs beside itself
waiting       until a status is reached
calls         one call to AWS, or the rehearsal of it
instances cost checks errors
"""
